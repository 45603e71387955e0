"""GIGA against a dense reference written from the equations alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoct.solvers import GIGA
from tests.solvers.contract import (
    KINDS,
    DescentContract,
    assert_same_weights,
    iterates,
    pick,
    rows_of,
    unit_rows,
)


class TestGIGAContract(DescentContract):
    solver = GIGA()


def step(vectors, target, w, change):
    """One iteration (research notes, section 7), all products taken afresh."""
    units, norms = unit_rows(vectors)
    b = target / np.linalg.norm(target)
    if not w.any():
        row = pick(units @ b, change)
        new = np.zeros(len(norms))
        new[row] = 1.0 / norms[row]
    else:
        length = np.linalg.norm(w @ vectors)
        w, y = w / length, (w @ vectors) / length
        c = b - (b @ y) * y
        c /= np.linalg.norm(c)
        left = 1.0 - (units @ y) ** 2
        score = np.where(left > 1e-14, units @ c / np.sqrt(np.maximum(left, 1e-14)), -np.inf)
        row = pick(score, change)
        a = units[row]
        p, q = b @ a - (b @ y) * (y @ a), b @ y - (b @ a) * (y @ a)
        assert p > 0.0
        assert q >= 0.0
        new = q * w
        new[row] += p / norms[row]
    along = new @ vectors
    return new * (along @ target) / (along @ along)


@pytest.mark.parametrize("kind", ["plain", "scales", "duplicates", "logistic"])
@pytest.mark.parametrize("seed", range(3))
def test_every_iterate_is_that_of_the_definition(kind, seed):
    vectors = rows_of(kind, 60, 25, seed)
    target, norms = vectors.sum(axis=0), np.linalg.norm(vectors, axis=1)
    ours = iterates(GIGA(), vectors, target, 40)
    assert len(ours) == 40
    w = before = np.zeros(60)
    for after in ours:
        # The direction alone tells which row was raised: the scale moves all of them.
        w = step(vectors, target, w, _raised(before, after, norms))
        assert_same_weights(after, w, norms)
        before = after


def _raised(before, after, norms):
    """Return how far each share rose, once the rows that kept their proportions are level."""
    kept = before > 0.0
    if not kept.any():
        return after * norms
    factor = np.min(after[kept] / before[kept])
    return (after - factor * before) * norms


def test_an_almost_orthogonal_start_is_followed_as_well():
    """⟨b̂, y⟩ below 0.1, where ⟨a_n, y⟩ is not had by division."""
    rng = np.random.default_rng(0)
    vectors, target = rng.normal(size=(60, 2000)), rng.normal(size=2000)
    units, norms = unit_rows(vectors)
    assert (units @ target).max() < 0.1 * np.linalg.norm(target)
    ours = iterates(GIGA(), vectors, target, 10)
    assert len(ours) == 10
    w = before = np.zeros(60)
    for after in ours:
        w = step(vectors, target, w, _raised(before, after, norms))
        assert_same_weights(after, w, norms)
        before = after


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(1, 25), st.integers(1, 20), st.integers(0, 10_000), st.sampled_from(KINDS))
def test_the_scale_is_the_best_one_and_zero_is_worse(n, S, seed, kind):
    vectors = rows_of(kind, n, S, seed)
    target, sigma = vectors.sum(axis=0), np.linalg.norm(vectors, axis=1).sum()
    for w in iterates(GIGA(), vectors, target, 30):
        x = w @ vectors
        assert abs(x @ (target - x)) <= 1e-12 * sigma * np.linalg.norm(target)
        assert np.linalg.norm(target - x) <= np.linalg.norm(target) * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_it_converges_linearly_and_ends_by_itself_where_nothing_is_left(seed):
    vectors = rows_of("plain", 200, 10, seed)
    target = vectors.sum(axis=0)
    losses = [np.linalg.norm(target - w @ vectors) for w in iterates(GIGA(), vectors, target, 400)]
    assert losses[30] < 1e-3 * losses[10] < 1e-3 * losses[0]
    assert len(losses) < 400
    assert losses[-1] <= 1e-13 * np.linalg.norm(vectors, axis=1).sum()
