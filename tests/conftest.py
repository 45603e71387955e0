"""Strict JAX in tests, and the data folder for the tests that need real data."""

import contextlib
import gc
import os
import signal
from pathlib import Path

import jax
import platformdirs
import pytest
from jaxtyping import install_import_hook

# Half of a run was compiling, most of it LLVM's optimisation of kernels that run once. `XLA_FLAGS=`
# tests the programs that users run; tests of a process' memory do so always.
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # the flag is gone since
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", FLAGS)

# stanli's compiler cannot start once XLA uses a processor's AMX: its signal stack is too small.
with contextlib.suppress(ImportError):
    import stanli

    stanli.Model(stan_code="parameters { real x; } model { x ~ normal(0, 1); }")

import tests.typechecking  # noqa: E402, F401  (the hook below names it)

# Shapes and types are checked while testing, and only then. The public door and the solvers, which
# tests call with wrong types on purpose, stay out.
CHECKED = (
    "models.parameters",
    "passes.potentials",
    "stats.chains",
    "stats.divergences",
    "samplers",
    "theory.alignment",
    "theory.bounds",
    "theory.information_geometry",
    "theory.path_divergence",
    "constructions",
)
install_import_hook([f"decoct.{name}" for name in CHECKED], "tests.typechecking.check")

# A run in the background of a shell without job control ignores Ctrl-C, and so would all it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tracing makes millions of objects that stay: Python's search for garbage among them took a twelfth
# of the time.
gc.set_threshold(50_000, 20, 100)

jax.config.update("jax_numpy_rank_promotion", "raise")

# Tests compile thousands of small programs, most of them the same in every run and every process.
CACHE = platformdirs.user_cache_path("decoct", appauthor=False) / "xla-tests"
KEPT = {
    "jax_compilation_cache_dir": str(CACHE),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for option, value in KEPT.items():
    jax.config.update(option, value)
    os.environ[option.upper()] = str(value)  # for processes that tests start


MOST_MAPS = 2_500
"""Memory maps of a process above which compiled programs are let go; Linux allows 65,530."""


@pytest.fixture(scope="module", autouse=True)
def few_compiled_programs():
    """Every compiled program holds memory maps, and a process that runs out of them aborts."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


SLOW = (
    "bridges/test_bambi.py",
    "bridges/test_base_verbs.py",
    "bridges/test_likelihood_params.py",
    "bridges/test_likelihood_params_pymc.py",
    "bridges/test_numpyro_models.py::test_constrained",
    "bridges/test_numpyro_models.py::test_tables",
    "bridges/test_numpyro_round_trip.py",
    "bridges/test_numpyro_site.py",
    "bridges/test_numpyro_values.py",
    "bridges/test_picks.py",
    "bridges/test_pymc_round_trip.py",
    "bridges/test_pymc_site.py",
    "bridges/test_pymc_traps.py",
    "bridges/test_pymc_values.py",
    "building/test_comparison.py",
    "building/test_costs.py",
    "building/test_driver.py",
    "building/test_driver_dask.py",
    "certificates/test_certificate.py",
    "certificates/test_row_estimate.py",
    "cli/test_app_bad_input.py::test_check_and_plot",
    "cli/test_app_process.py",
    "cli/test_app_round_trip.py::test_plot",
    "cli/test_build.py",
    "cli/test_compare_report.py",
    "constructions/test_base.py",
    "constructions/test_by_group.py",
    "constructions/test_expansion.py",
    "constructions/test_fits.py",
    "constructions/test_gradient_update.py",
    "constructions/test_hilbert.py",
    "constructions/test_l1_path.py",
    "constructions/test_moment_matching.py",
    "constructions/test_multilevel.py",
    "constructions/test_proper_weights.py",
    "constructions/test_sparse_vi.py",
    "constructions/test_subsampled_pass.py",
    "data/test_dask_rows.py",
    "data/test_verified_rows.py::test_a_certificate",
    "docs/test_guides.py",
    "evaluation/",
    "examples/",
    "experiments/",
    "faults/",
    "formats/test_coreset_file.py",
    "mixture/test_cavi.py",
    "mixture/test_coreset_fit.py",
    "mixture/test_dp_gaussian_mixture.py",
    "mixture/test_gibbs.py",
    "passes/test_expansions.py",
    "passes/test_predictors.py",
    "passes/test_row_samples.py",
    "plots/test_page.py",
    "plots/test_page_file.py",
    "runtime/test_progress.py::test_merging",
    "samplers/test_arrow.py",
    "samplers/test_centring.py",
    "samplers/test_laplace.py",
    "samplers/test_nuts.py",
    "samplers/test_pathfinder.py",
    "streams/",
    "test_real_data.py",
)
"""How the names of tests begin that `make test` leaves out and `make test-all` runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the slow tests. Leave the real-data tests out where no folder is named, and say so.

    Hypothesis refuses to draw beside threads that use `random`, as Dask's do: its tests go first.
    """
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(SLOW):
            item.add_marker("slow")
    items.sort(
        key=lambda item: not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    )
    if os.environ.get("DECOCT_DATA"):
        return
    kept = [item for item in items if item.get_closest_marker("data") is None]
    left_out = [item for item in items if item.get_closest_marker("data") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_report_header():
    folder = os.environ.get("DECOCT_DATA")
    if folder:
        return f"real data: from the folder {folder}"
    return "real data: DECOCT_DATA is not set, tests marked 'data' are left out"


@pytest.fixture
def users_environment() -> dict[str, str]:
    """The environment for a process that compiles as it does for users."""
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}


@pytest.fixture
def data_folder() -> Path:
    """The folder with the papers' data sets; a missing one is a failure."""
    folder = Path(os.environ["DECOCT_DATA"])
    assert folder.is_dir(), f"DECOCT_DATA names {folder}, which is not a folder"
    return folder
