"""Optional packages that are missing, too old, too new or do not fit: one sentence, what to do."""

import builtins
import importlib
import re
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import decoct
from decoct import bridges
from decoct.bridges.bambi import BAMBI, from_bambi
from decoct.bridges.numpyro import NUMPYRO, from_numpyro
from decoct.bridges.packages import require
from decoct.bridges.pymc import PYMC, from_pymc

CALLS = {
    "numpyro": (NUMPYRO, lambda: from_numpyro(lambda: None, {"y": [0.0]})),
    "pymc": (PYMC, lambda: from_pymc(None)),
    "bambi": (BAMBI, lambda: from_bambi(None)),
}
each_package = pytest.mark.parametrize("name", list(CALLS))


def installed(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def refused(name):
    """What the bridge says, and that it names the command with the extra."""
    package, call = CALLS[name]
    with pytest.raises(decoct.RequestError) as caught:
        call()
    message = str(caught.value)
    assert f"'decoct[{package.extra}]'" in message
    assert len(message) < 400
    return message


def importing(monkeypatch, name, error):
    real = importlib.import_module

    def fails(asked, *rest):
        if asked == name:
            raise error
        return real(asked, *rest)

    monkeypatch.setattr(importlib, "import_module", fails)


@each_package
def test_missing(monkeypatch, name):
    error = ModuleNotFoundError(f"No module named '{name}'", name=name)
    importing(monkeypatch, name, error)
    assert f"needs {name}, which is not installed" in refused(name)


@each_package
def test_too_old(monkeypatch, name):
    monkeypatch.setattr(installed(name), "__version__", "0.16.3")
    message = refused(name)
    assert f"{name} 0.16.3 is installed" in message
    assert f"works with {CALLS[name][0].releases}. Install such a release" in message


@pytest.mark.parametrize(
    ("name", "version", "works"),
    [("pymc", "7.0.0", "pymc>=5.28,<7"), ("bambi", "0.22.0", "bambi>=0.17,<0.22")],
)
def test_too_new(monkeypatch, name, version, works):
    """They may have moved what the bridges take apart, and would fail inside."""
    monkeypatch.setattr(installed(name), "__version__", version)
    assert f"{name} {version} is installed; decoct works with {works}. " in refused(name)


def test_bambi_beside_a_pymc_that_is_too_new(monkeypatch):
    installed("bambi")
    monkeypatch.setattr(installed("pymc"), "__version__", "7.1.0")
    assert "pymc 7.1.0 is installed; decoct works with pymc>=5.28,<7" in refused("bambi")


def test_the_limits_themselves_work(monkeypatch):
    numpyro, pymc = installed("numpyro"), installed("pymc")
    for version in ("0.21", "0.22.dev1"):
        monkeypatch.setattr(numpyro, "__version__", version)
        assert require(NUMPYRO) is numpyro
    for version in ("5.28.0", "5.99.9", "6.0.0", "6.99.9"):
        monkeypatch.setattr(pymc, "__version__", version)
        assert require(PYMC) is pymc


@each_package
def test_a_package_that_cannot_be_imported(monkeypatch, name):
    importing(monkeypatch, name, ImportError("cannot import name 'xla' from 'jax'"))
    message = refused(name)
    assert f"{name} is installed but does not work with the other packages" in message
    assert "(ImportError: cannot import name 'xla' from 'jax')" in message
    assert f"works with {CALLS[name][0].releases}. Install versions that fit" in message


@pytest.mark.parametrize(
    ("name", "moved", "reloaded"),
    [
        ("numpyro", "numpyro.infer.util.compute_log_probs", ["numpyro_model", "numpyro_trace"]),
        ("pymc", "pytensor.function", ["pymc_model", "pymc_graph"]),
        ("bambi", "pymc.model.fgraph.model_from_fgraph", ["bambi_model"]),
    ],
)
def test_something_moved_inside_a_package(monkeypatch, name, moved, reloaded):
    """A release within the limits in which what a bridge imports is elsewhere."""
    installed(name)
    for module in reloaded:
        monkeypatch.delitem(sys.modules, f"decoct.bridges.{module}", raising=False)
    home, what = moved.rsplit(".", 1)
    monkeypatch.delattr(importlib.import_module(home), what)
    message = refused(name)
    assert f"{name} is installed but does not work with" in message
    assert f"cannot import name '{what}' from '{home}'" in message


@each_package
def test_importing_a_bridge_does_not_import_its_package(monkeypatch, name):
    real = builtins.__import__

    def watched(asked, *rest):
        assert asked.split(".")[0] not in {"numpyro", "pymc", "pytensor", "bambi"}
        return real(asked, *rest)

    monkeypatch.setattr(bridges, name, getattr(bridges, name))  # as it was, afterwards
    monkeypatch.delitem(sys.modules, f"decoct.bridges.{name}")
    monkeypatch.setattr(builtins, "__import__", watched)
    importlib.import_module(f"decoct.bridges.{name}")


def test_the_extras_ask_for_what_the_bridges_ask_for():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for package, _ in CALLS.values():
        assert package.releases in extras[package.extra]
    assert PYMC.releases in extras["bambi"]


def test_the_development_requirements_ask_for_the_same():
    written = (Path(__file__).parents[2] / "requirements-dev.txt").read_text().splitlines()
    for package, _ in CALLS.values():
        assert [line for line in written if re.match(rf"{package.name}\b", line)] == [
            package.releases
        ]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_constraints_name_one_release_for_every_python(python):
    """PyMC 6 needs Python 3.12, and nothing later than PyMC 5 installs on 3.11."""
    lines = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines]
    assert not [r for r in requirements if r.url]
    pinned = [
        r for r in requirements if not r.marker or r.marker.evaluate({"python_version": python})
    ]
    names = [canonicalize_name(r.name) for r in pinned]
    assert len(names) == len(set(names))
    for package, _ in CALLS.values():
        (version,) = [str(r.specifier).removeprefix("==") for r in pinned if r.name == package.name]
        assert Requirement(package.releases).specifier.contains(version)
    major = "5" if python == "3.11" else "6"
    assert [str(r.specifier).startswith(f"=={major}.") for r in pinned if r.name == "pymc"] == [
        True
    ]
