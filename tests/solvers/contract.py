"""What every Hilbert solver must keep; a new one inherits `SolverContract` or what is below it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoct.solvers.base import Budget
from decoct.solvers.nnls import UnitVectors
from tests.picks import Picks

KINDS = ("plain", "scales", "duplicates", "logistic", "zeros", "low rank")
TIE = 1e-10
"""Scores closer than this, relative to the best, are equal: the definition allows either row."""

inherited = settings(
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors],  # every sub-class runs it
)


def rows_of(kind: str, n: int, S: int, seed: int) -> np.ndarray:
    """Return (n, S) vectors."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, S)) + 0.3 * rng.normal(size=S)
    if kind == "scales":
        vectors *= 10.0 ** rng.uniform(-3, 3, size=(n, 1))
    if kind == "duplicates":
        vectors[n // 2 :] = vectors[: n - n // 2]
    if kind == "logistic":
        x, theta = rng.normal(size=(n, 5)), 0.3 * rng.normal(size=(S, 5))
        sign = np.sign(rng.random(n) - 0.3)
        potentials = -np.logaddexp(0.0, -sign[:, None] * (x @ theta.T))
        vectors = (potentials - potentials.mean(axis=1, keepdims=True)) / np.sqrt(S)
    if kind == "zeros":
        vectors[::3] = 0.0
    if kind == "low rank":
        vectors = rng.normal(size=(n, 3)) @ rng.normal(size=(3, S))
    return vectors


def unit_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a_n = g_n/σ_n and σ_n."""
    norms = np.linalg.norm(vectors, axis=1)
    return vectors / norms[:, None], norms


def iterates(solver: Any, vectors: np.ndarray, target: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the solver's first dense weight vectors."""
    steps = solver.steps(UnitVectors.scaled(vectors, target))
    return [one.result().dense(len(vectors)) for one, _ in zip(steps, range(count), strict=False)]


def pick(score: np.ndarray, change: np.ndarray) -> int:
    """Return the argmax; among equal scores the row whose weight the solver raised most."""
    best = score.max()
    tied = np.flatnonzero(score >= best - TIE * abs(best))
    return int(tied[np.argmax(change[tied])])


def assert_same_weights(ours: np.ndarray, reference: np.ndarray, scale: np.ndarray) -> None:
    """Compare α_n = σ_n w_n, each in its own row's units, to 1e-10 of the largest."""
    ours, reference = ours * scale, reference * scale
    np.testing.assert_allclose(ours, reference, rtol=1e-10, atol=1e-10 * reference.max())


class SolverContract:
    """Sub-classes set ``solver``."""

    solver: Any

    def solve(self, vectors, target=None, sizes=(1, 2, 5, 10), iterations=None, **options):
        vectors = np.array(vectors)
        target = vectors.sum(axis=0, dtype=np.float64) if target is None else target
        problem = UnitVectors.scaled(vectors, target, **options)
        return self.solver.solve(problem, Budget(sizes, iterations), np.random.default_rng(0))

    @inherited
    @given(st.integers(1, 25), st.integers(1, 20), st.integers(0, 10_000), st.sampled_from(KINDS))
    def test_what_every_path_keeps(self, n, S, seed, kind):
        vectors = rows_of(kind, n, S, seed)
        target, norms = vectors.sum(axis=0), np.linalg.norm(vectors, axis=1)
        path = self.solve(vectors, sizes=(1, 3, 8, 30))
        assert set(path) <= {1, 3, 8, 30}
        for m, one in path.items():
            assert 1 <= len(one.indices) <= m
            assert one.indices.dtype == np.int64
            assert one.weights.dtype == np.float64
            assert (np.diff(one.indices) > 0).all()
            assert one.indices[0] >= 0
            assert (norms[one.indices] > 0.0).all()
            assert np.isfinite(one.weights).all()
            assert (one.weights > 0.0).all()
            recomputed = np.linalg.norm(target - one.dense(n) @ vectors)
            assert one.residual_norm == pytest.approx(recomputed, rel=1e-9, abs=1e-12 * norms.sum())

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_size_is_filled_where_the_target_is_the_sum(self, kind):
        assert set(self.solve(rows_of(kind, 40, 15, 0))) == {1, 2, 5, 10}

    @pytest.mark.parametrize("n", [1, 4])
    def test_zero_vectors_only_leave_nothing_to_choose(self, n):
        assert self.solve(np.zeros((n, 5)), target=np.ones(5)) == {}

    def test_a_single_row_that_is_not_zero_is_found(self):
        vectors = np.zeros((6, 4))
        vectors[4] = [1.0, -2.0, 0.5, 3.0]
        for one in self.solve(vectors).values():
            assert one.indices.tolist() == [4]
            np.testing.assert_allclose(one.weights, 1.0, rtol=1e-12)

    def test_equal_vectors_are_reproduced(self):
        vectors = np.tile([1.0, -2.0, 0.3], (7, 1))
        path = self.solve(vectors)
        assert set(path) == {1, 2, 5, 10}
        for one in path.values():
            assert one.weights.sum() == pytest.approx(7.0, rel=1e-12)
            assert one.residual_norm <= 1e-13 * np.linalg.norm(vectors.sum(axis=0))
        assert len(path[1].indices) == 1

    @pytest.mark.parametrize("S", [1, 2, 3])
    def test_fewer_draws_than_rows_asked_for(self, S):
        path = self.solve(rows_of("plain", 30, S, 1), sizes=(20, 60))
        assert set(path) == {20, 60}
        assert all(np.isfinite(one.residual_norm) for one in path.values())

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_vector_that_is_not_finite_is_named(self, bad):
        vectors = rows_of("plain", 8, 5, 0)
        vectors[6, 2] = bad
        with pytest.raises(ValueError, match="Vector 6"):
            self.solve(vectors, target=np.ones(5))

    def test_the_generator_decides_everything(self):
        vectors = rows_of("logistic", 60, 20, 0)
        first, again = self.solve(vectors), self.solve(vectors)
        for m, one in first.items():
            np.testing.assert_array_equal(one.indices, again[m].indices)
            np.testing.assert_array_equal(one.weights, again[m].weights)

    @pytest.mark.parametrize("kind", ["plain", "scales"])
    def test_units_of_a_row_do_not_matter_to_its_share(self, kind):
        # Everything times a power of two: the same digits throughout.
        vectors = rows_of(kind, 40, 12, 2)
        plain, scaled = self.solve(vectors), self.solve(vectors * 2.0**20)
        for m, one in plain.items():
            np.testing.assert_array_equal(one.indices, scaled[m].indices)
            np.testing.assert_allclose(one.weights, scaled[m].weights, rtol=1e-12)


class SinglePrecisionContract(SolverContract):
    """For solvers that take rows in single precision."""

    @pytest.mark.parametrize("kind", ["plain", "scales", "logistic"])
    def test_single_precision_follows_the_same_path(self, kind):
        vectors, sizes = rows_of(kind, 80, 25, 3), (1, 2, 3, 4, 6)
        target = vectors.sum(axis=0)
        # few steps: momentum that never settles makes any difference grow (A-IHT on "scales")
        double = self.solve(vectors, target, sizes, 30)
        single = self.solve(vectors.astype(np.float32), target, sizes, 30, overwrite=True)
        for m, one in double.items():
            np.testing.assert_array_equal(single[m].indices, one.indices)
            assert single[m].weights.dtype == np.float64
            np.testing.assert_allclose(single[m].weights, one.weights, rtol=1e-3)
            assert single[m].residual_norm == pytest.approx(one.residual_norm, rel=1e-5)
            recomputed = np.linalg.norm(target - single[m].dense(80) @ vectors)
            assert single[m].residual_norm == pytest.approx(recomputed, rel=1e-5)


class ByTargetContract(SolverContract):
    """For solvers that go by the target, not by the norms alone."""

    def test_a_target_no_row_points_to_has_no_path(self):
        vectors = np.abs(rows_of("plain", 20, 6, 0))
        assert self.solve(vectors, target=-vectors.sum(axis=0)) == {}

    def test_a_zero_target_has_no_path(self):
        half = rows_of("plain", 10, 6, 0)
        vectors = np.vstack([half, -half])
        assert self.solve(vectors, target=np.zeros(6)) == {}


class IterativeContract(ByTargetContract, SinglePrecisionContract):
    """For solvers whose ``steps(problem)`` yields iterates, at most one more row in each."""

    @pytest.mark.parametrize("kind", ["plain", "logistic"])
    @pytest.mark.parametrize("iterations", [None, 1, 7, 45])
    def test_what_a_size_and_the_iterations_allow(self, kind, iterations):
        vectors, sizes = rows_of(kind, 50, 20, 4), (1, 3, 9, 20)
        target = vectors.sum(axis=0)
        path = self.solve(vectors, sizes=sizes, iterations=iterations)
        tried = iterates(self.solver, vectors, target, iterations or 20)
        for m in sizes:
            allowed = [
                np.linalg.norm(target - w @ vectors)
                for number, w in enumerate(tried, start=1)
                if np.count_nonzero(w) <= m and (iterations is not None or number <= m)
            ]
            assert path[m].residual_norm == pytest.approx(min(allowed), rel=1e-9)
            assert len(path[m].indices) <= m

    def test_every_iteration_is_told(self):
        picks = Picks()
        problem = UnitVectors.scaled(vectors := rows_of("plain", 50, 20, 4), vectors.sum(axis=0))
        with picks:
            self.solver.solve(problem, Budget((3, 8)), np.random.default_rng(0))
        assert picks.done == [1] * 8


class DescentContract(IterativeContract):
    """For iterative solvers whose ‖b − Σ w_n g_n‖ never rises."""

    def losses(self, vectors, target, count):
        steps = self.solver.steps(UnitVectors.scaled(vectors, target))
        return np.array([one.loss for one, _ in zip(steps, range(count), strict=False)])

    @inherited
    @given(st.integers(1, 25), st.integers(1, 20), st.integers(0, 10_000), st.sampled_from(KINDS))
    def test_the_loss_never_rises(self, n, S, seed, kind):
        vectors = rows_of(kind, n, S, seed)
        losses = self.losses(vectors, vectors.sum(axis=0), 60)
        assert (np.diff(losses) <= 1e-13 * np.linalg.norm(vectors, axis=1).sum()).all()
