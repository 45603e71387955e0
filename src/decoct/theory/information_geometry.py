"""The information geometry of coresets (Campbell & Beronov 2019, Section 4 and Appendix A, B).

The coreset posteriors π_w are an exponential family in w ≥ 0, and a manifold with the Fisher metric

    G(w) = ∇² log Z(w) = Cov_w[f]                                                     (Eq. 14)

over the N rows. The tangent of the path from w straight to v is v − w, with ⟨u, v⟩_w = uᵀG(w)v:

    J_ŵ(w) = Var_ŵ[Σ(1 − w_n)f_n] = ‖1 − w‖²_ŵ, the objective of Hilbert coresets      (Eq. 3, 16)
    min over t > 0 of ‖(1 − w) − t 1_n‖²_w = ‖1 − w‖²_w (1 − max(0, Corr_n)²)          (Eq. 17, 44)
    Corr_n = Corr_w[f_n, (1 − w)ᵀf], the cosine of the angle of 1_n and 1 − w          (Eq. 10, 46)

so the row most correlated with the residual is the one whose path leads closest to π.

G is a factor A with G = AAᵀ here, never an N × N matrix: potentials at draws, centred, or in closed
form. The variation of the metric along the path to π bounds the error of a Hilbert coreset
(`hilbert_constant`); its average along the path is the symmetrised KL (`path_divergence`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from decoct.errors import RequestError

EPS = float(np.finfo(np.float64).eps)

ROUNDING = 16.0 * EPS
"""Error of a computed potential, relative to its size."""


@dataclass(frozen=True, eq=False)
class Metric:
    """The Fisher metric G(w) = AAᵀ at one point of the manifold (Eq. 14), over n rows.

    Tangent vectors are (n,): a change of the rows' weights. G is in nats².

    Attributes
    ----------
    factor : (n, k)
        A.
    rounding : (n,)
        Length of the part of each row of A that may be nothing but rounding.
    draws
        How many draws G was estimated from; None in closed form.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import metric
    >>> g = metric(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 3.0]]))
    >>> g.n_rows, round(g.norm(np.array([1.0, 0.0])), 6)
    (2, 1.0)
    """

    factor: Float[np.ndarray, "n k"]
    rounding: Float[np.ndarray, " n"]
    draws: int | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.factor)

    @property
    def matrix(self) -> Float[np.ndarray, "n n"]:
        """G itself; n² numbers."""
        return self.factor @ self.factor.T

    def inner(self, u: np.ndarray, v: np.ndarray) -> float:
        """Return ⟨u, v⟩_w = uᵀG(w)v for tangent vectors (n,)."""
        return float(self._image(u) @ self._image(v))

    def norm(self, u: np.ndarray) -> float:
        """Return ‖u‖_w = √(uᵀG(w)u), the standard deviation of Σ u_n f_n under π_w."""
        return float(np.linalg.norm(self._image(u)))

    def cosine(self, u: np.ndarray, v: np.ndarray) -> float:
        """Return the cosine of the angle of u and v: Corr_w[uᵀf, vᵀf] (Eq. 46).

        Raises
        ------
        RequestError
            A vector has length 0 and so no direction, or does not fit the metric.
        """
        return float(self.direction(u) @ self.direction(v))

    def angle(self, u: np.ndarray, v: np.ndarray) -> float:
        """Return the angle of u and v, in radians; small angles are exact. Errors as `cosine`."""
        a, b = self.direction(u), self.direction(v)
        return float(2.0 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b)))

    def _image(self, u: np.ndarray) -> Float[np.ndarray, " k"]:
        """Return Aᵀu, whose plain length is ‖u‖_w."""
        return per_row("The tangent vector", u, self.n_rows) @ self.factor

    def direction(self, u: np.ndarray) -> Float[np.ndarray, " k"]:
        """Return Aᵀu/‖u‖_w. Errors as `cosine`."""
        image = self._image(u)
        length = np.linalg.norm(image)
        if length == 0.0:
            raise RequestError(
                "A tangent vector has length 0 under this metric, so it has no direction; the "
                "combination of potentials it stands for is constant."
            )
        return image / length


def metric(vectors: Float[np.ndarray, "..."]) -> Metric:
    """Estimate G(w) = Cov_w[f] from the potentials of some rows at draws of π_w (Eq. 14).

    Unbiased for independent draws: centred over the draws, divided by S − 1.

    Parameters
    ----------
    vectors : (n, S)
        f_n(θ_s) at S draws θ_s of π_w, as `Potentials.vectors` returns them.

    Returns
    -------
    Metric
        G(w) over the n rows, as a factor (n, k).

    Raises
    ------
    RequestError
        Not an (n, S) array with at least one row and two draws, or a value is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory.information_geometry import metric
    >>> g = metric(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 3.0]]))
    >>> g.matrix
    array([[1. , 1.5],
           [1.5, 3. ]])
    >>> round(g.cosine(np.array([1.0, 0.0]), np.array([0.0, 1.0])), 3)
    0.866
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] < 2:
        raise RequestError(
            f"The potentials have the shape {vectors.shape}; (n, S) is wanted, with at least one "
            "row and two draws."
        )
    if not np.isfinite(vectors).all():
        row, draw = np.argwhere(~np.isfinite(vectors))[0]
        raise RequestError(
            f"The potential of row {row} at draw {draw} is {vectors[row, draw]}; drop that row or "
            "draw, or repair the model."
        )
    S = vectors.shape[1]
    # From the first draw, so that a constant potential is exactly 0.
    centred = vectors - vectors[:, :1]
    centred -= centred.mean(axis=1, keepdims=True)
    return Metric(centred / np.sqrt(S - 1), ROUNDING * np.abs(vectors).max(axis=1), S)


def residual_correlations(at: Metric, weights: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return Corr_w[f_n, (1 − w)ᵀf] of every row, the cosine of 1_n and 1 − w (Eq. 10, 46).

    Greedy selection takes the largest, by modulus among the rows with w_n > 0. A row whose
    potential is constant under π_w gets 0: no weight on it moves π_w.

    Parameters
    ----------
    at
        G(w) over *all* rows: the residual is a sum over all of them.
    weights : (n,)
        w.

    Returns
    -------
    ndarray
        (n,), between −1 and 1.

    Raises
    ------
    RequestError
        The weights do not fit, or the residual is constant under π_w: π is reached already.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory.information_geometry import metric, residual_correlations
    >>> at = metric(np.random.default_rng(0).normal(size=(4, 200)))
    >>> residual_correlations(at, np.zeros(4)).shape
    (4,)
    """
    residual = at.direction(1.0 - per_row("The vector of weights", weights, at.n_rows))
    norms = np.linalg.norm(at.factor, axis=1)
    return (at.factor @ residual) / np.where(norms > 0.0, norms, 1.0)


def hilbert_objective(reference: Metric, weights: np.ndarray) -> float:
    """Return J_ŵ(w) = Var_ŵ[Σ(1 − w_n)f_n] = ‖1 − w‖²_ŵ, in nats² (Eq. 3, 16).

    Parameters
    ----------
    reference
        G(ŵ) over all n rows.
    weights : (n,)
        w.

    Returns
    -------
    float
        J ≥ 0, in nats².

    Raises
    ------
    RequestError
        The weights do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory.information_geometry import metric, hilbert_objective
    >>> at = metric(np.random.default_rng(0).normal(size=(4, 200)))
    >>> hilbert_objective(at, np.ones(4))
    0.0
    """
    weights = per_row("The vector of weights", weights, reference.n_rows)
    return reference.norm(1.0 - weights) ** 2


def per_row(what: str, values: np.ndarray, n_rows: int) -> Float[np.ndarray, " n"]:
    """Return one finite number per row, or say what is wrong with ``what``."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (n_rows,):
        raise RequestError(
            f"{what} has the shape {values.shape}; there are {n_rows} rows, so ({n_rows},) is "
            "wanted, with 0 for the rows left out."
        )
    if not np.isfinite(values).all():
        bad = int(np.argmin(np.isfinite(values)))
        raise RequestError(
            f"{what} has the entry {values[bad]} at row {bad}; give a finite number."
        )
    return values


def nonnegative_weights(weights: np.ndarray, n_rows: int) -> Float[np.ndarray, " n"]:
    """Return weights w ≥ 0, one per row."""
    weights = per_row("The vector of weights", weights, n_rows)
    if (weights < 0.0).any():
        bad = int(np.argmax(weights < 0.0))
        raise RequestError(f"The weight of row {bad} is {weights[bad]}; give 0 or a positive one.")
    return weights
