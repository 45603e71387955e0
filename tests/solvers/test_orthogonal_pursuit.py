"""Orthogonal pursuit and its exchanges against naive references and brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls

from decoct.solvers.exchange import _SwapTable, exchange
from decoct.solvers.nnls import ActiveSet, UnitVectors, nnls
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit, refine

KINDS = ("plain", "positive", "low rank", "duplicates", "zeros", "scales")


def problem(n, S, seed, kind="plain"):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, S))
    if kind == "positive":
        vectors = np.abs(vectors) + 1.0
    if kind == "low rank":
        vectors = rng.normal(size=(n, 3)) @ rng.normal(size=(3, S))
    if kind == "duplicates":
        vectors[n // 2 :] = vectors[: n - n // 2]
    if kind == "zeros":
        vectors[::3] = 0.0
    if kind == "scales":
        vectors *= 10.0 ** rng.uniform(-4, 4, size=(n, 1))
    return vectors, vectors.sum(axis=0)


def naive(vectors, target, size):
    """One row at a time, SciPy's solver on the support, zeros dropped; the best of each size."""
    norms = np.linalg.norm(vectors, axis=1)
    units = vectors / np.where(norms > 0, norms, 1.0)[:, None]
    support, residual, best = [], target, {}
    for _ in range(4 * size):
        score = units @ residual
        score[support] = -np.inf
        row = int(np.argmax(score))
        if len(support) >= size or score[row] <= 1e-10 * np.linalg.norm(target):
            break
        support.append(row)
        weights, norm = scipy_nnls(units[support].T, target)
        support = [one for one, w in zip(support, weights, strict=True) if w > 0]
        residual = target - weights[weights > 0] @ units[support]
        found = norm, sorted(support)
        best[len(support)] = min(found, best.get(len(support), found))
    return best


@pytest.mark.parametrize("kind", ["plain", "positive", "zeros", "scales"])
@pytest.mark.parametrize("seed", range(3))
def test_every_size_is_as_good_as_the_naive_pursuit(kind, seed):
    vectors, target = problem(50, 30, seed, kind)
    ours, reference = orthogonal_pursuit(vectors, target, 12), naive(vectors, target, 12)
    assert set(ours) == set(reference)
    for size, (norm, support) in reference.items():
        assert ours[size].residual_norm == pytest.approx(norm, rel=1e-8)
        assert ours[size].indices.tolist() == support


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 25),
    st.integers(0, 10_000),
    st.sampled_from(KINDS),
    st.integers(0, 3),
)
def test_what_every_path_keeps(n, S, size, seed, kind, exchanges):
    vectors, target = problem(n, S, seed, kind)
    path = orthogonal_pursuit(vectors, target, size, sizes=range(1, size + 1), exchanges=exchanges)
    plain = orthogonal_pursuit(vectors, target, size)
    assert set(plain) == set(path)
    least = scipy_nnls(vectors.T, target)[1]
    scale = np.linalg.norm(target)
    for m, one in path.items():
        assert 1 <= m <= min(size, n, S)
        assert 1 <= len(one.indices) <= m
        assert (np.diff(one.indices) > 0).all()
        assert (one.weights > 0).all()
        assert one.residual_norm <= plain[m].residual_norm * (1 + 1e-12)
        recomputed = np.linalg.norm(target - one.dense(n) @ vectors)
        assert one.residual_norm == pytest.approx(recomputed, rel=1e-8, abs=1e-9 * scale)
        assert least - 1e-9 * scale <= one.residual_norm <= scale
        # the weights are the best there are on that support
        alone = scipy_nnls(vectors[one.indices].T, target)[1]
        assert one.residual_norm == pytest.approx(alone, rel=1e-8, abs=1e-9 * scale)


def test_a_path_as_long_as_needed_ends_at_the_nnls_solution():
    vectors, target = problem(40, 25, 0)
    target = target + np.random.default_rng(1).normal(size=25)
    path = orthogonal_pursuit(vectors, target, 40)
    assert min(one.residual_norm for one in path.values()) == pytest.approx(
        nnls(vectors, target).residual_norm, rel=1e-9, abs=1e-11
    )


def test_stop_ends_the_path():
    vectors, target = problem(40, 25, 0)
    seen = []

    def stop(solution):
        seen.append(len(solution.indices))
        return len(solution.indices) == 4

    path = orthogonal_pursuit(vectors, target, 20, stop=stop)
    assert max(path) == 4
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["plain", "positive"])
def test_swap_gains_are_those_of_brute_force_over_all_swaps(seed, kind):
    vectors, target = problem(18, 9, seed, kind)
    unit = UnitVectors.scaled(vectors, target)
    active = ActiveSet.spanned_by(unit, orthogonal_pursuit(vectors, target, 4)[4].indices)
    table = _SwapTable(active)
    loss = float(np.square(active.residual()).sum())
    for place, row in itertools.product(range(active.size), range(18)):
        if row in active.support:
            continue
        rest = [one for i, one in enumerate(active.support) if i != place]
        without = np.linalg.lstsq(unit.vectors[rest].T, target, rcond=None)[1][0]
        solution, squares, *_ = np.linalg.lstsq(unit.vectors[[*rest, row]].T, target, rcond=None)
        along, loses = table._direction(place)
        score = table._scores(along[:, None], np.array([loses]))[row, 0]
        assert loss + loses**2 == pytest.approx(without, rel=1e-9)
        # a candidate whose weight would be negative may not enter
        expected = without - squares[0] if solution[-1] > 0 else 0.0
        assert score == pytest.approx(expected, rel=1e-7, abs=1e-10 * loss)


def test_an_exchange_finds_the_better_support_that_greed_misses():
    rng = np.random.default_rng(0)
    vectors = np.vstack([np.eye(4), rng.normal(size=(30, 4)) * 0.1 + 1.0])
    target = np.array([1.0, 1.0, 0.02, 0.01])
    best = min(
        scipy_nnls(vectors[list(pair)].T, target)[1]
        for pair in itertools.combinations(range(len(vectors)), 2)
    )
    assert best < orthogonal_pursuit(vectors, target, 2)[2].residual_norm
    refined = orthogonal_pursuit(vectors, target, 2, sizes=(2,), exchanges=20)[2].residual_norm
    greedy = orthogonal_pursuit(vectors, target, 2)[2]
    assert refine(vectors, target, greedy, 20).residual_norm == pytest.approx(refined)
    assert refined == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_after_the_exchanges_hardly_a_swap_is_left_that_pays(seed):
    vectors, target = problem(16, 10, seed, "positive")
    refined = orthogonal_pursuit(vectors, target, 4, sizes=(4,), exchanges=50)[4]
    best = min(
        scipy_nnls(vectors[sorted({*refined.indices, row} - {out})].T, target)[1]
        for row in range(16)
        for out in refined.indices
    )
    assert best**2 >= (1 - 0.005) * refined.residual_norm**2


@pytest.mark.parametrize("kind", KINDS)
def test_an_exchange_never_does_harm(kind):
    for seed in range(5):
        vectors, target = problem(40, 20, seed, kind)
        unit = UnitVectors.scaled(vectors, target)
        start = np.random.default_rng(seed).choice(np.flatnonzero(unit.usable), 6, replace=False)
        before = np.linalg.norm(ActiveSet.spanned_by(unit, start).residual())
        after = exchange(unit, start, 5)
        assert after.size <= 6
        assert np.linalg.norm(after.residual()) <= before * (1 + 1e-12)


def test_an_exchange_of_a_dependent_support_drops_the_copies():
    vectors, target = problem(10, 20, 2)
    vectors[1] = vectors[0]
    result = exchange(UnitVectors.scaled(vectors, target), [0, 1, 2], 3)
    assert result.size <= 3
    assert len(set(result.support)) == result.size


def test_rows_with_a_wide_range_of_near_collinearity():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(3, 60))
    spread = 10.0 ** rng.uniform(-9, -1, size=(80, 1))
    vectors = base[rng.integers(3, size=80)] + spread * rng.normal(size=(80, 60))
    target = vectors.sum(axis=0)
    path = orthogonal_pursuit(vectors, target, 30, sizes=(5, 15, 30), exchanges=10)
    for one in path.values():
        recomputed = np.linalg.norm(target - one.dense(80) @ vectors)
        assert one.residual_norm == pytest.approx(
            recomputed, rel=1e-6, abs=1e-12 * np.linalg.norm(target)
        )


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_refused(size):
    with pytest.raises(ValueError, match="at least 1"):
        orthogonal_pursuit(np.ones((2, 2)), np.ones(2), size)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="Vector 1"):
        orthogonal_pursuit(np.array([[1.0, 0.0], [np.nan, 1.0]]), np.ones(2), 1)
    with pytest.raises(ValueError, match="target"):
        orthogonal_pursuit(np.ones((2, 2)), np.array([np.inf, 1.0]), 1)
    with pytest.raises(ValueError, match="must be"):
        orthogonal_pursuit(np.ones((2, 2)), np.ones(3), 1)


def test_a_size_beyond_the_rows_is_all_rows_at_most():
    vectors, target = problem(5, 30, 0)
    assert max(orthogonal_pursuit(vectors, target, 100)) == 5
