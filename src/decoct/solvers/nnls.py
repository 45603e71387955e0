"""Non-negative least squares by an active set (Lawson & Hanson 1974, ch. 23).

Solves  min_{w ≥ 0} ‖b − Vᵀw‖²  with V (n, S). With centred tangent vectors in the rows of V this
*is* the minimisation of ½(1 − w)ᵀ Cov[f] (1 − w), the local form of KL(π_w‖π).

The rows enter one at a time, the one with the largest correlation with the residual first; rows
that lie in the span of the support (duplicates, S < M, rank deficiency) are passed over, because
for them the correlation with the residual is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from decoct.solvers.active_set import ActiveSet, UnitVectors


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
