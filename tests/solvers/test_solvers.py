"""Sparse solvers against SciPy, brute force and their own definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls

from decoct.solvers.active_set import ActiveSet, UnitVectors
from decoct.solvers.exchange import _SwapTable, exchange
from decoct.solvers.nnls import nnls
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit


def problem(n, S, seed, kind="plain"):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, S))
    if kind == "low rank":
        vectors = rng.normal(size=(n, 3)) @ rng.normal(size=(3, S))
    if kind == "duplicates":
        vectors[n // 2 :] = vectors[: n - n // 2]
    if kind == "zeros":
        vectors[::3] = 0.0
    if kind == "scales":
        vectors *= 10.0 ** rng.uniform(-6, 6, size=(n, 1))
    return vectors, vectors[: n // 2].sum(axis=0) + rng.normal(size=S)


KINDS = ("plain", "low rank", "duplicates", "zeros", "scales")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "S"), [(20, 40), (40, 20), (1, 5), (60, 60)])
def test_nnls_is_as_good_as_scipys(n, S, kind):
    vectors, target = problem(n, S, 0, kind)
    ours = nnls(vectors, target)
    _, residual = scipy_nnls(vectors.T, target)
    assert ours.residual_norm <= residual + 1e-10 * np.linalg.norm(target)
    assert (ours.weights > 0).all()
    recomputed = np.linalg.norm(target - ours.dense(n) @ vectors)
    assert ours.residual_norm == pytest.approx(recomputed, abs=1e-9 * np.linalg.norm(target))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 25), st.integers(1, 25), st.integers(0, 10_000), st.sampled_from(KINDS))
def test_nnls_satisfies_the_kkt_conditions(n, S, seed, kind):
    vectors, target = problem(n, S, seed, kind)
    solution = nnls(vectors, target)
    residual = target - solution.dense(n) @ vectors
    norms = np.linalg.norm(vectors, axis=1)
    gradient = vectors @ residual / np.where(norms > 0, norms, 1.0)
    scale = np.linalg.norm(target)
    assert gradient.max() <= 1e-8 * scale
    assert np.abs(gradient[solution.indices]).max(initial=0.0) <= 1e-8 * scale


def naive_pursuit(vectors, target, size):
    """The definition, with SciPy's solver at every step."""
    support, weights, path = [], np.zeros(0), {}
    norms = np.linalg.norm(vectors, axis=1)
    while len(support) < size:
        residual = target - weights @ vectors[support] if support else target
        score = vectors @ residual / norms
        score[support] = -np.inf
        support.append(int(np.argmax(score)))
        weights, norm = scipy_nnls(vectors[support].T, target)
        support = [row for row, w in zip(support, weights, strict=True) if w > 0]
        weights = weights[weights > 0]
        path.setdefault(len(support), []).append((sorted(support), norm))
    return path


def test_pursuit_follows_its_definition_step_by_step():
    vectors, target = problem(60, 30, 3)
    ours = orthogonal_pursuit(vectors, target, 10)
    for size, visits in naive_pursuit(vectors, target, 10).items():
        support, norm = min(visits, key=lambda visit: visit[1])
        assert ours[size].indices.tolist() == support
        assert ours[size].residual_norm == pytest.approx(norm, rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_exchanges_never_make_it_worse_nor_larger(kind):
    vectors, target = problem(80, 40, 1, kind)
    plain = orthogonal_pursuit(vectors, target, 8)
    refined = orthogonal_pursuit(vectors, target, 8, sizes=range(1, 9), exchanges=10)
    for size, solution in plain.items():
        assert refined[size].residual_norm <= solution.residual_norm * (1 + 1e-12)
        assert len(refined[size].indices) <= size
        assert (refined[size].weights > 0).all()


def test_an_exchange_finds_the_better_support_that_greed_misses():
    rng = np.random.default_rng(0)
    vectors = np.vstack([np.eye(4), rng.normal(size=(30, 4)) * 0.1 + 1.0])
    target = np.array([1.0, 1.0, 0.02, 0.01])
    best = min(
        scipy_nnls(vectors[list(pair)].T, target)[1]
        for pair in itertools.combinations(range(len(vectors)), 2)
    )
    greedy = orthogonal_pursuit(vectors, target, 2)[2].residual_norm
    refined = orthogonal_pursuit(vectors, target, 2, sizes=(2,), exchanges=20)[2].residual_norm
    assert best < greedy
    assert refined == pytest.approx(best, rel=1e-9)


def test_swap_scores_are_the_true_gains():
    vectors, target = problem(25, 12, 5)
    unit = UnitVectors.scaled(vectors, target)
    active = ActiveSet(unit)
    for row in orthogonal_pursuit(vectors, target, 4)[4].indices:
        active.add(int(row))
    table = _SwapTable(active)
    loss = np.square(active.residual()).sum()
    for place in range(active.size):
        along, loses = table._direction(place)
        scores = table._scores(along[:, None], np.array([loses]))[:, 0]
        rest = [row for i, row in enumerate(active.support) if i != place]
        for row in np.flatnonzero(scores):
            columns = unit.vectors[[*rest, row]].T
            _, squares, *_ = np.linalg.lstsq(columns, target, rcond=None)
            assert loss + loses**2 - scores[row] == pytest.approx(squares[0], rel=1e-9)


def test_near_collinear_vectors_keep_their_digits():
    rng = np.random.default_rng(0)
    base = rng.normal(size=40)
    vectors = base + 1e-7 * rng.normal(size=(60, 40))
    target = vectors[:20].sum(axis=0)
    ours = nnls(vectors, target)
    assert ours.residual_norm <= 1e-9 * np.linalg.norm(target)


def test_exchange_of_a_dependent_support_drops_the_copies():
    vectors, target = problem(10, 20, 2)
    vectors[1] = vectors[0]
    result = exchange(UnitVectors.scaled(vectors, target), [0, 1, 2], 3)
    assert result.size <= 3
    assert len(set(result.support)) == result.size


@pytest.mark.parametrize(
    ("vectors", "target", "message"),
    [
        (np.ones((3, 2)), np.ones(3), "must be"),
        (np.array([[np.nan, 1.0]]), np.ones(2), "Vector 0"),
        (np.ones((3, 2)), np.array([np.inf, 1.0]), "target"),
    ],
)
def test_bad_input_is_a_sentence(vectors, target, message):
    with pytest.raises(ValueError, match=message):
        nnls(vectors, target)


def test_size_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        orthogonal_pursuit(np.ones((2, 2)), np.ones(2), 0)
