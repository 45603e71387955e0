"""Frank–Wolfe and its variants against dense references written from the equations alone."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as scipy_nnls

from decoct.solvers import FrankWolfe
from decoct.solvers.nnls import UnitVectors
from tests.solvers.contract import (
    DescentContract,
    IterativeContract,
    assert_same_weights,
    iterates,
    pick,
    rows_of,
    unit_rows,
)

KINDS = ("plain", "scales", "duplicates", "logistic")
STEPS = 40


def on_a_face(seed):
    """Vectors and a target that is a mean of four vertices: the steps run into the boundary."""
    vectors = np.abs(rows_of("plain", 60, 15, seed))
    units, norms = unit_rows(vectors)
    return vectors, norms.sum() * units[:4].mean(axis=0)


def followed(kind, seed):
    if kind == "face":
        return on_a_face(seed)
    vectors = rows_of(kind, 60, 25, seed)
    return vectors, vectors.sum(axis=0)


class TestFrankWolfeContract(DescentContract):
    solver = FrankWolfe()


class TestFixedStepContract(IterativeContract):
    solver = FrankWolfe(step="fixed")


class TestAwayStepContract(DescentContract):
    solver = FrankWolfe("away")


class TestPairwiseContract(DescentContract):
    solver = FrankWolfe("pairwise")


class TestFullyCorrectiveContract(DescentContract):
    solver = FrankWolfe("fully_corrective")


def vertex(row, sigma, norms):
    """(σ/σ_f) 1_f."""
    w = np.zeros(len(norms))
    w[row] = sigma / norms[row]
    return w


def first(vectors, target, change):
    """Eq. 4.7."""
    norms = np.linalg.norm(vectors, axis=1)
    return vertex(pick(vectors @ target / norms, change), norms.sum(), norms)


def plain_step(vectors, target, w, change, t, fixed):
    """Eq. 4.8 and 4.9, or γ_t = 2/(3t + 4)."""
    norms = np.linalg.norm(vectors, axis=1)
    residual = target - w @ vectors
    row = pick(vectors @ residual / norms, change)
    d = vertex(row, norms.sum(), norms) - w
    gamma = 2 / (3 * t + 4) if fixed else (d @ vectors) @ residual / np.square(d @ vectors).sum()
    return w + gamma * d


def away_step(vectors, target, w, change, pairwise):
    """Lacoste-Julien & Jaggi (2015), Algorithms 1 and 2, on the vertices (σ/σ_n) 1_n."""
    norms = np.linalg.norm(vectors, axis=1)
    sigma, residual = norms.sum(), target - w @ vectors
    score = vectors @ residual / norms
    shares = norms * w / sigma
    towards = vertex(pick(score, change), sigma, norms)
    away_row = pick(np.where(w > 0.0, -score, -np.inf), -change)
    away = vertex(away_row, sigma, norms)
    share = shares[away_row]
    if pairwise:
        d, most = towards - away, share
    elif ((towards - w) @ vectors) @ residual >= ((w - away) @ vectors) @ residual:
        d, most = towards - w, 1.0
    else:
        d, most = w - away, share / (1.0 - share)
    moved = d @ vectors
    gamma = min(moved @ residual / (moved @ moved), most)
    new = w + gamma * d
    if gamma == most and most < 1.0:
        new[away_row] = 0.0
    return new


@pytest.mark.parametrize(
    ("kind", "seed"),
    [*itertools.product(KINDS, range(3)), *itertools.product(["face"], range(6))],
)
@pytest.mark.parametrize(
    ("variant", "step"),
    [("vanilla", "exact"), ("vanilla", "fixed"), ("away", "exact"), ("pairwise", "exact")],
)
def test_every_iterate_is_that_of_the_definition(variant, step, kind, seed):
    vectors, target = followed(kind, seed)
    norms = np.linalg.norm(vectors, axis=1)
    ours = iterates(FrankWolfe(variant, step), vectors, target, STEPS)
    converged = np.linalg.norm(target - ours[-1] @ vectors) <= 1e-12 * norms.sum()
    assert len(ours) == STEPS or converged
    w = first(vectors, target, ours[0])
    assert_same_weights(ours[0], w, norms)
    for t, (before, after) in enumerate(itertools.pairwise(ours)):
        change = (after - before) * norms
        if variant == "vanilla":
            w = plain_step(vectors, target, w, change, t, step == "fixed")
        else:
            w = away_step(vectors, target, w, change, variant == "pairwise")
        assert_same_weights(after, w, norms)
        np.testing.assert_array_equal(after > 0.0, w > 0.0)


@pytest.mark.parametrize("variant", ["away", "pairwise"])
def test_the_problems_followed_have_steps_that_drop_a_vertex(variant):
    drops = 0
    for seed in range(6):
        ours = iterates(FrankWolfe(variant), *on_a_face(seed), STEPS)
        drops += sum(
            ((before > 0.0) & (after == 0.0)).any() for before, after in itertools.pairwise(ours)
        )
    assert drops >= 2


@pytest.mark.parametrize("variant", ["away", "pairwise"])
def test_a_dropped_vertex_leaves_no_dust(variant):
    for seed in range(60):
        vectors, target = on_a_face(seed)
        shares = np.linalg.norm(vectors, axis=1)
        shares = shares / shares.sum()
        for w in iterates(FrankWolfe(variant), vectors, target, 25):
            assert (w * shares)[w > 0.0].min() > 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_fully_corrective_is_the_nearest_point_of_the_hull_of_all_chosen_vertices(kind, seed):
    vectors = rows_of(kind, 60, 25, seed)
    target, (units, norms) = vectors.sum(axis=0), unit_rows(vectors)
    sigma = norms.sum()
    ours = iterates(FrankWolfe("fully_corrective"), vectors, target, STEPS)
    assert len(ours) > 15
    chosen: list[int] = []
    before = np.zeros(len(vectors))
    for w in ours:
        residual = target - before @ vectors
        chosen.append(pick(units @ residual, (w - before) * norms))
        # min ‖b − Σ λ_i σ a_i‖, Σ λ = 1: lifted by a row of ones so heavy that it holds.
        heavy = 1e4 * sigma
        lifted = np.vstack([sigma * units[chosen].T, np.full(len(chosen), heavy)])
        shares, _ = scipy_nnls(lifted, np.append(target, heavy))
        reference = np.zeros(len(vectors))
        np.add.at(reference, chosen, sigma * shares / norms[chosen])
        if np.linalg.norm(target - before @ vectors) > 1e-6 * sigma and len(chosen) <= 25:
            np.testing.assert_allclose(w * norms, reference * norms, rtol=0, atol=1e-6 * sigma)
        # Optimality over the hull: ⟨σ a_v − x, b − x⟩ is 0 at the active vertices, negative else.
        x = w @ vectors
        slope = (sigma * units[chosen] - x) @ (target - x)
        scale = 1e-10 * sigma * np.linalg.norm(target - x) + 1e-13 * sigma**2
        assert slope.max() <= scale
        assert np.abs((sigma * units[w > 0.0] - x) @ (target - x)).max() <= scale
        assert set(np.flatnonzero(w)) <= set(chosen)
        before = w


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.integers(1, 25),
    st.integers(1, 20),
    st.integers(0, 10_000),
    st.sampled_from(["vanilla", "away", "pairwise", "fully_corrective"]),
    st.sampled_from(KINDS),
)
def test_every_iterate_stays_on_the_polytope(n, S, seed, variant, kind):
    vectors = rows_of(kind, n, S, seed)
    norms = np.linalg.norm(vectors, axis=1)
    for w in iterates(FrankWolfe(variant), vectors, vectors.sum(axis=0), 40):
        assert (w >= 0.0).all()
        assert norms @ w == pytest.approx(norms.sum(), rel=1e-12)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(2, 25), st.integers(1, 20), st.integers(0, 10_000), st.sampled_from(KINDS))
def test_the_free_step_lies_between_0_and_1(n, S, seed, kind):
    """Lemma 4.3: Eq. 4.9 needs no bounds where b is the sum of the rows."""
    vectors = rows_of(kind, n, S, seed)
    assume(vectors.any(axis=1).all())
    target, (units, norms) = vectors.sum(axis=0), unit_rows(vectors)
    sigma = norms.sum()
    for w in iterates(FrankWolfe(), vectors, target, 30):
        x = w @ vectors
        d = sigma * units[np.argmax(units @ (target - x))] - x
        if np.linalg.norm(target - x) > 1e-10 * sigma:
            assert -1e-12 <= d @ (target - x) / (d @ d) <= 1.0 + 1e-12


@pytest.mark.parametrize("variant", ["vanilla", "away", "pairwise", "fully_corrective"])
def test_a_polytope_too_small_for_the_target_ends_at_its_nearest_point(variant):
    """σ of fewer rows than b sums over: the free step goes beyond the vertex and is cut there."""
    vectors = np.abs(rows_of("plain", 30, 8, 0))
    target = 3.0 * vectors.sum(axis=0)
    units, norms = unit_rows(vectors)
    best = min(np.linalg.norm(target - norms.sum() * a) for a in units)
    ours = iterates(FrankWolfe(variant), vectors, target, 100)
    assert norms @ ours[-1] == pytest.approx(norms.sum(), rel=1e-12)
    assert (ours[-1] >= 0.0).all()
    assert np.linalg.norm(target - ours[-1] @ vectors) <= best


def test_sigma_of_all_rows_is_used_where_these_are_a_part():
    vectors = rows_of("plain", 40, 10, 0)
    sigma = 1.7 * np.linalg.norm(vectors, axis=1).sum()
    problem = UnitVectors.scaled(vectors, 1.5 * vectors.sum(axis=0), sum_of_norms=sigma)
    for here, _ in zip(FrankWolfe().steps(problem), range(5), strict=False):
        solution = here.result()
        norms = np.linalg.norm(vectors[solution.indices], axis=1)
        assert norms @ solution.weights == pytest.approx(sigma, rel=1e-12)


@pytest.mark.parametrize("variant", ["away", "pairwise", "fully_corrective"])
def test_the_variants_converge_linearly(variant):
    """They beat the plain method by far where the optimum lies on a face."""
    vectors, target = on_a_face(1)
    plain = iterates(FrankWolfe(), vectors, target, 300)[-1]
    ours = iterates(FrankWolfe(variant), vectors, target, 300)[-1]
    loss = [np.linalg.norm(target - w @ vectors) for w in (plain, ours)]
    assert loss[1] < 1e-3 * loss[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "lazy"}, "variant must be one of vanilla, away, pairwise, fully_corrective"),
        ({"step": "armijo"}, "step must be one of exact, fixed"),
        ({"variant": "away", "step": "fixed"}, "fixed step is for the vanilla variant"),
    ],
)
def test_wrong_options_are_sentences(options, message):
    with pytest.raises(ValueError, match=message):
        FrankWolfe(**options)
