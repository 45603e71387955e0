"""Non-negative least squares by an active set (Lawson & Hanson 1974, ch. 23).

Solves  min_{w ≥ 0} ‖b − Vᵀw‖²  with V (n, S). With centred tangent vectors in the rows of V this
*is* the minimisation of ½(1 − w)ᵀ Cov[f] (1 − w), the local form of KL(π_w‖π).

All sparse solvers of decoct work on a small *support* of the rows of V; an `ActiveSet` keeps its
weights at the least-squares solution. Rows are scaled to unit norm on entry (weights are scaled
back on exit), which is what makes tolerances on the Gram matrix meaningful whatever the units of
the potentials.

The rows enter one at a time, the one with the largest correlation with the residual first; rows
that lie in the span of the support (duplicates, S < M, rank deficiency) are passed over, because
for them the correlation with the residual is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float, Int

from decoct.errors import RequestError

INDEPENDENT = 1e-11
"""A unit vector closer than this to a subspace counts as lying in it."""

NORM_BLOCK = 8192
"""Rows whose norms are taken at once."""


@dataclass(frozen=True)
class UnitVectors:
    """Rows scaled to unit norm, with the target b they should add up to.

    Rows shorter than the rounding of the target are not usable. They could only enter with a weight
    above 1e15, too large wherever else their potentials are not flat.
    """

    vectors: Float[np.ndarray, "n S"]  # double or (large pools) single; a zero row stays zero
    norms: Float[np.ndarray, " n"]  # those taken out
    target: Float[np.ndarray, " S"]
    usable: np.ndarray
    sum_of_norms: float  # σ = Σ_n ‖g_n‖ over *all* rows, of which these may be a part

    @classmethod
    def scaled(
        cls,
        vectors: Float[np.ndarray, "n S"],
        target: Float[np.ndarray, " S"],
        *,
        overwrite: bool = False,
        sum_of_norms: float | None = None,
    ) -> UnitVectors:
        """Scale the rows of ``vectors``; refuse shapes that do not fit and non-finite numbers.

        With ``overwrite`` the caller's array is scaled in place, single precision stays single,
        and they are never copied.
        """
        vectors = np.asarray(vectors)
        if not overwrite:
            vectors = np.array(vectors, dtype=np.float64)
        target = np.asarray(target, dtype=np.float64)
        if vectors.ndim != 2 or target.shape != vectors.shape[1:]:
            raise RequestError(
                f"The vectors have shape {vectors.shape} and the target {target.shape}; "
                "they must be (n, S) and (S,)."
            )
        if not np.isfinite(target).all():
            raise RequestError("The target has NaN or infinite entries.")
        norms = row_norms(vectors)
        if not np.isfinite(norms).all():
            bad = int(np.argmin(np.isfinite(norms)))
            raise RequestError(f"Vector {bad} has NaN or infinite entries.")
        scale = np.where(norms > np.finfo(vectors.dtype).tiny, norms, 1.0)
        usable = (scale == norms) & (norms > np.finfo(np.float64).eps * np.linalg.norm(target))
        vectors /= scale.astype(vectors.dtype)[:, None]
        if sum_of_norms is None:
            sum_of_norms = float(norms[usable].sum())
        return cls(vectors, scale, target, usable, sum_of_norms)

    def products(self, direction: Float[np.ndarray, " S"]) -> Float[np.ndarray, " n"]:
        """Return ⟨g_n, direction⟩/‖g_n‖ for every row; −∞ where the row is zero."""
        products = self.vectors @ direction.astype(self.vectors.dtype, copy=False)
        products[~self.usable] = -np.inf
        return products

    def unit(self, rows: int | Sequence[int] | np.ndarray) -> Float[np.ndarray, "..."]:
        """Return unit rows in double precision."""
        return self.vectors[rows].astype(np.float64, copy=False)


def row_norms(vectors: Float[np.ndarray, "n S"]) -> Float[np.ndarray, " n"]:
    """Return the Euclidean norm of every row in double precision, without a copy of them all."""
    norms = np.empty(len(vectors))
    for begin in range(0, len(vectors), NORM_BLOCK):
        block = slice(begin, begin + NORM_BLOCK)
        norms[block] = np.linalg.norm(vectors[block].astype(np.float64, copy=False), axis=1)
    return norms


class ActiveSet:
    """The support, its positive weights, and a QR factorisation of its vectors.

    V_Aᵀ = QR is updated as rows come and go. R is the Cholesky factor of the Gram matrix
    H = V_A V_Aᵀ = RᵀR, found without squaring its condition number: rows of a data set are nearly
    collinear once the support spans the locally quadratic part of the potentials, and the rest is
    lost in the rounding of the Gram matrix.
    """

    def __init__(self, problem: UnitVectors) -> None:
        self.problem = problem
        self.support: list[int] = []
        self.weights = np.zeros(0)
        self._store = np.empty((len(problem.target), 16), order="F")  # Q and room to grow
        self.q = self._store[:, :0]
        self.r = np.zeros((0, 0))
        self.target = np.zeros(0)
        self.blocked: set[int] = set()

    @property
    def size(self) -> int:
        return len(self.support)

    def residual(self) -> Float[np.ndarray, " S"]:
        """Return b − Vᵀw = b − QQᵀb; the weights are always least squares on the support.

        Projected twice, so that it is orthogonal to the support to the digits of ‖r‖, not of ‖b‖.
        """
        once = self.problem.target - self.q @ self.target
        return once - self.q @ (self.q.T @ once)

    @classmethod
    def spanned_by(cls, problem: UnitVectors, support: Sequence[int]) -> ActiveSet:
        """Return the set that starts from these rows, less those that depend on others."""
        active = cls(problem)
        rows = [int(row) for row in support]
        q, r = np.linalg.qr(problem.unit(rows).T)
        if len(rows) <= len(q) and np.abs(np.diag(r)).min(initial=1.0) > INDEPENDENT:
            active.support, active.q, active.r = rows, q, r
            active.target = q.T @ problem.target
            active.weights = np.zeros(len(rows))
        else:
            for row in rows:
                active._insert(row)
        # All weights zero is feasible, so settling from here only drops rows.
        active._settle()
        return active

    def inverse_gram(self) -> Float[np.ndarray, "m m"]:
        """Return H⁻¹ = R⁻¹R⁻ᵀ."""
        inverse = scipy.linalg.solve_triangular(self.r, np.eye(self.size), check_finite=False)
        return inverse @ inverse.T

    def add(self, row: int) -> bool:
        """Bring ``row`` in and re-solve; False if it depends on the support or gets no weight."""
        if self._insert(row):
            self._settle()
        if row not in self.support:
            self.blocked.add(row)
            return False
        self.blocked = set()
        return True

    def _settle(self) -> None:
        """Lawson-Hanson inner loop: least squares on the support, dropping what turns negative."""
        while self.size:
            solution = scipy.linalg.solve_triangular(self.r, self.target, check_finite=False)
            falling = solution <= 0.0
            if not falling.any():
                self.weights = solution
                return
            current = self.weights
            ratio = current[falling] / (current[falling] - solution[falling])
            step = float(ratio.min())
            self.weights = np.maximum(current + step * (solution - current), 0.0)
            leaving = np.flatnonzero(falling)[ratio <= step]
            for position in leaving[::-1]:
                self._delete(int(position))

    def _insert(self, row: int) -> bool:
        """Append a row to the factorisation (Gram-Schmidt, twice); False if it is in the span."""
        vector = self.problem.unit(row)
        inside = self.q.T @ vector
        outside = vector - self.q @ inside
        again = self.q.T @ outside
        outside -= self.q @ again
        distance = float(np.linalg.norm(outside))
        if distance < INDEPENDENT or self.size == len(vector):
            return False
        direction = outside / distance
        m = self.size
        r = np.zeros((m + 1, m + 1), order="F")
        r[:m, :m], r[:m, m], r[m, m] = self.r, inside + again, distance
        if self.q.base is not self._store or m == self._store.shape[1]:
            self._store = np.empty((len(vector), max(16, 2 * m)), order="F")
            self._store[:, :m] = self.q
        self._store[:, m] = direction
        self.q, self.r = self._store[:, : m + 1], r
        self.target = np.append(self.target, direction @ self.problem.target)
        self.support.append(row)
        self.weights = np.append(self.weights, 0.0)
        return True

    def _delete(self, position: int) -> None:
        if self.size == 1:
            self.q, self.r = self.q[:, :0], self.r[:0, :0]
        else:
            m = self.size - 1
            q, r = scipy.linalg.qr_delete(self.q, self.r, position, which="col", check_finite=False)
            self.q, self.r = q[:, :m], r[:m, :m]  # a square Q comes back whole
        self.target = self.q.T @ self.problem.target
        del self.support[position]
        self.weights = np.delete(self.weights, position)


@dataclass(frozen=True)
class SparseWeights:
    """A sparse non-negative weight vector.

    Attributes
    ----------
    indices : (m,)
        Rows with a positive weight, ascending.
    weights : (m,)
        Their weights.
    residual_norm
        ‖b − Vᵀw‖.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import nnls
    >>> nnls(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).dense(2)
    array([2., 0.])
    """

    indices: Int[np.ndarray, " m"]
    weights: Float[np.ndarray, " m"]
    residual_norm: float

    @classmethod
    def of(cls, active: ActiveSet) -> SparseWeights:
        """Return an active set's weights in the units of the vectors as they were given."""
        support = np.array(active.support, dtype=np.int64)
        order, weights = np.argsort(support), active.weights / active.problem.norms[support]
        return cls(support[order], weights[order], float(np.linalg.norm(active.residual())))

    def dense(self, n: int) -> Float[np.ndarray, " n"]:
        """Return the weights as a vector of length n."""
        weights = np.zeros(n)
        weights[self.indices] = self.weights
        return weights


def best_row(active: ActiveSet) -> int | None:
    """Return the usable row with the largest correlation with the residual; None at the optimum.

    The correlation is ⟨g_n, r⟩/‖g_n‖ (Campbell & Beronov 2019, Eq. 10-11, inactive rows).
    """
    residual = active.residual()
    norm = float(np.linalg.norm(residual))
    if norm <= 1e-15 * float(np.linalg.norm(active.problem.target)):  # nothing is left to fit
        return None
    correlation = active.problem.products(residual)
    correlation[active.support] = -np.inf
    correlation[list(active.blocked)] = -np.inf
    row = int(np.argmax(correlation))
    return row if correlation[row] > 1e-13 * norm else None  # by its cosine with the residual


def fill(active: ActiveSet, most: int | None = None, size: float = np.inf) -> ActiveSet:
    """Bring in the best row until none helps, there are ``size``, or ``most`` have come (3 n)."""
    for _ in range(most or 3 * len(active.problem.vectors)):
        row = best_row(active) if active.size < size else None
        if row is None:
            break
        active.add(row)
    return active


def nnls(
    vectors: Float[np.ndarray, "n S"],
    target: Float[np.ndarray, " S"],
    max_iterations: int | None = None,
    support: Sequence[int] = (),
) -> SparseWeights:
    """Solve min_{w ≥ 0} ‖target − vectorsᵀ w‖².

    Parameters
    ----------
    vectors : (n, S)
        One vector per row.
    target : (S,)
        What the weighted rows should add up to.
    max_iterations
        Most rows to bring in, with repeats; default 3 n.
    support
        Rows to begin with, such as those of a similar problem's solution.

    Returns
    -------
    SparseWeights
        The rows with a positive weight.

    Raises
    ------
    ValueError
        Shapes do not fit, or a number is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import nnls
    >>> found = nnls(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0]))
    >>> found.indices, found.weights, found.residual_norm
    (array([0]), array([2.]), 1.0)
    """
    active = ActiveSet.spanned_by(UnitVectors.scaled(vectors, target), support)
    return SparseWeights.of(fill(active, max_iterations))
