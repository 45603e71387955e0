"""Every public name has a numpydoc docstring: summary, parameters, and an example that runs."""

import ast
import doctest
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import decoct

ROOMS = (
    *("decoct", "decoct.constructions", "decoct.data", "decoct.mixture", "decoct.models"),
    *("decoct.plots", "decoct.samplers", "decoct.solvers", "decoct.stats", "decoct.streams"),
    "decoct.theory",
    "decoct.constructions.hilbert.weighting",
)
GENERIC = {"args", "kwargs", "self"}  # of protocols, enums and bases without an __init__


def is_documented(value: Any) -> bool:
    return inspect.isroutine(value) or inspect.isclass(value)


def public_names() -> dict[str, Any]:
    """Return every public function and class once, by its shortest name."""
    found: dict[str, Any] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            value = getattr(module, name)
            if is_documented(value) and not any(value is other for other in found.values()):
                found[f"{room}.{name}"] = value
    for name, value in members_of_pages():
        if not any(value is other for other in found.values()):
            found[name] = value
    return found


def members_of_pages() -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of modules that the reference shows whole, or in part."""
    for page in sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.rst")):
        text = page.read_text(encoding="utf-8")
        for module, options in re.findall(r"automodule:: (\S+)\n((?:   :.*\n)*)", text):
            given = dict(re.findall(r":([\w-]+):[ ]*(.*)", options))
            chosen, left_out = (given.get(k, "") for k in ("members", "exclude-members"))
            if "members" not in given:
                continue
            values = vars(importlib.import_module(module))
            for name in chosen.split(", ") if chosen else values:
                value = values[name]
                is_own = is_documented(value) and value.__module__ == module
                if is_own and not name.startswith("_") and name not in left_out.split(", "):
                    yield f"{module}.{name}", value


NAMES = public_names()
by_name = pytest.mark.parametrize("name", sorted(NAMES))


def documentation(value: Any) -> str:
    """Return a docstring, and those of bases other than protocols for what it inherits."""
    own = inspect.getdoc(value) or ""
    bases = value.__mro__[1:] if inspect.isclass(value) else ()
    bases = [base for base in bases if not vars(base).get("_is_protocol")]
    inherited = (inspect.getdoc(base) or "" for base in bases if "decoct" in base.__module__)
    return "\n".join([own, *inherited])


@by_name
def test_a_public_name_has_a_summary_and_an_example(name):
    text = documentation(NAMES[name])
    assert re.match(r"\S.*[.:]", text), "no summary"
    assert re.search(r"^Examples\n-+\n(.*\n)*?>>> ", text, flags=re.MULTILINE), "no example"


@pytest.mark.parametrize("kind", [decoct.Coreset, decoct.Certificate, decoct.StreamingCoreset])
def test_a_method_that_users_call_has_an_example(kind):
    for name, method in inspect.getmembers(kind, inspect.isroutine):
        if not name.startswith("_") and name not in ("density", "to_dict"):
            assert "\nExamples\n---" in documentation(method), name


@by_name
def test_every_parameter_is_described(name):
    value = NAMES[name]
    if isinstance(value, enum.EnumType):
        return
    try:
        parameters = set(inspect.signature(value).parameters) - GENERIC
    except ValueError:  # an exception of Python's own signature
        return
    lines = re.findall(r"^(\S[^.]*?)(?: : .*)?$", documentation(value), flags=re.MULTILINE)
    described = {word.strip("*` ") for line in lines for word in line.split(",")}
    assert parameters <= described


@by_name
def test_every_member_has_a_docstring(name):
    """Its own, or that of the method it overrides: without one the reference leaves it out."""
    members = inspect.classify_class_attrs(NAMES[name]) if inspect.isclass(NAMES[name]) else []
    for one in members:
        is_own = one.kind != "data" and "decoct" in one.defining_class.__module__
        if is_own and not one.name.startswith("_"):
            assert inspect.getdoc(getattr(NAMES[name], one.name)), one.name


@by_name
def test_what_is_returned_is_described(name):
    value = NAMES[name]
    if inspect.isroutine(value) and inspect.signature(value).return_annotation != "None":
        assert "\nReturns\n---" in documentation(value)


def refuses(value: Any) -> bool:
    """Return whether a function, or how a class is made, raises or checks an input itself."""
    try:
        made = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    except (OSError, TypeError):  # no source: an alias, or of another library
        return False
    if inspect.isclass(value):
        named = ("__init__", "__post_init__")
        made = [one for one in made[0].body if getattr(one, "name", "") in named]
    nodes = [node for one in made for node in ast.walk(one)]
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    is_checked = any(name.split(".")[-1].startswith("check_") for name in calls)
    return is_checked or any(isinstance(node, ast.Raise) for node in nodes)


@by_name
def test_what_is_refused_is_described(name):
    value = NAMES[name]
    if refuses(value):
        assert "\nRaises\n---" in documentation(value)


@pytest.mark.slow
@by_name
def test_the_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = NAMES[name]
    names = vars(importlib.import_module(value.__module__))
    for test in doctest.DocTestFinder().find(value, name, globs=dict(names)):
        runner = doctest.DocTestRunner(verbose=False)
        assert runner.run(test).failed == 0
