"""Predictions of KL, checked where the coreset posterior goes."""

import jax
import numpy as np
import pytest

from decoct.constructions.base import Selection, SizedSelection
from decoct.constructions.iterated_hilbert.tangent_problem import SplitTangent, check_at_its_draws
from decoct.models import LogisticRegression
from tests.constructions.contract import problem_of

N = 400


@pytest.fixture(scope="module")
def problem():
    """Row 0 alone has a standardised indicator: its coefficient is half a prior, cut off at 0."""
    rng = np.random.default_rng(0)
    rare = np.zeros(N)
    rare[0] = 1.0
    x = np.column_stack([300.0 * rare, rng.normal(size=N)])
    y = np.where(rng.random(N) < 0.5, 1, 0)
    y[0] = 1
    model = LogisticRegression(prior_scale=1.0)
    return problem_of(model, {"x": x, "y": y}, N - 1)


def selection(problem, first):
    indices = np.arange(first, N)
    return Selection(indices, np.ones(len(indices)), problem.potentials.rows.take(indices))


@pytest.fixture(scope="module")
def view(problem):
    everything = selection(problem, 0)
    z = problem.draw(jax.random.key(0), everything, 1000).flat[:1000]
    return SplitTangent.of(problem, z, problem.potentials.totals(z), everything.pool, everything)


def test_a_missing_row_that_the_draws_do_not_show_is_found_at_the_coresets_own(problem, view):
    without = selection(problem, 1)
    residual = view.held_out.target - view.held_out.vectors[1:].sum(axis=0)
    judged = 0.5 * float(residual @ residual)
    assert judged < 0.5  # what draws of the full posterior see of half a prior in the wrong place
    key = jax.random.key(1)
    checked = check_at_its_draws(key, view, SizedSelection(without, judged), selection(problem, 0))
    # half of π_w lies at a < 0, where the missing row has the log-likelihood 300 a
    assert checked == pytest.approx(150 * np.sqrt(2 / np.pi), rel=0.2)


def test_a_prediction_that_its_draws_bear_out_stays(problem, view):
    everything = SizedSelection(selection(problem, 0), 1e-9)
    checked = check_at_its_draws(jax.random.key(1), view, everything, selection(problem, 0))
    assert checked == 1e-9
