"""Fit to held-out rows, the other metric of Campbell & Broderick (2019, Section 7.3).

The negative log-likelihood of test rows, averaged over rows and posterior draws,

    −(1/S) Σ_s (1/n) Σ_i f_i(θ_s),

which they shift by the largest test log-likelihood that any θ has, sup_θ (1/n) Σ_i f_i(θ).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import ModelError
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Curvature, Potentials
from decoct.runtime.precision import float64
from decoct.samplers.datatree import unconstrained
from decoct.samplers.laplace import maximise

RIDGES = 10.0 ** -np.arange(1.0, 21.0)
"""Ridges tried, in units of the curvature at the model's init."""


@float64
def negative_log_likelihood(
    model: AbstractModel, rows: Rows | object, draws: Float[np.ndarray, "..."]
) -> float:
    """Return −(1/S) Σ_s (1/n) Σ_i f_i(θ_s), in nats per row; one pass over the rows.

    Parameters
    ----------
    model
        A model of `decoct.models` or `decoct.Model`.
    rows
        Held-out rows: anything `decoct.rows` accepts.
    draws : (S, d)
        Posterior draws in unconstrained, flattened parameter space.

    Returns
    -------
    float
        In nats per row.

    Raises
    ------
    RequestError
        There are no draws, or they have another number of parameters than the model.
    ModelError
        A potential is not finite; the message names the row.
    RowsError
        The rows cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import decoct
    >>> from decoct.theory.predictive import negative_log_likelihood
    >>> rows = {"x": np.array([[1.0], [-2.0]]), "y": np.array([1, 0])}
    >>> model = decoct.models.LogisticRegression()
    >>> round(negative_log_likelihood(model, rows, np.zeros((5, 1))), 6)
    0.693147
    """
    potentials = Potentials(model, encoded(as_rows(rows), model))
    z = unconstrained(draws, potentials.dim).reshape(-1, potentials.dim)
    return -float(potentials.totals(z).mean()) / potentials.n_rows


@float64
def best_log_likelihood(
    model: AbstractModel, rows: Rows | object, *, tolerance: float = 1e-6
) -> float:
    """Return sup_θ (1/n) Σ_i f_i(θ), in nats per row; the prior plays no part.

    The supremum need not be reached: where the labels of a logistic regression are separable it is
    0, at infinity. So L(θ) − ½λ Σ_j h_j (θ_j − θ⁰_j)² is maximised by Newton's method for λ = 0.1,
    0.01, …, with h the curvature of L at the model's init θ⁰, so that no unit of a column matters.
    The optima for ever smaller λ have an L that rises to the supremum, and the last is returned
    once λ/10 gained less than ``tolerance`` over λ twice in a row. A supremum that is reached is
    then met far within the tolerance, since what is missing falls with λ²; one at infinity about
    within it, since what is missing falls with λ. Likelihoods that are not concave get the
    supremum that Newton's method finds from the model's init.

    Parameters
    ----------
    model
        A model of `decoct.models` or `decoct.Model`.
    rows
        Held-out rows: anything `decoct.rows` accepts. Some fifty passes.
    tolerance
        Nats per row.

    Returns
    -------
    float
        In nats per row.

    Raises
    ------
    ModelError
        The likelihood has no bound, or Newton's method found no maximum; or a potential is not
        finite, and then the message names the row.
    RowsError
        The rows cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import decoct
    >>> from decoct.theory.predictive import best_log_likelihood
    >>> rows = {"x": np.ones((4, 1)), "y": np.array([1, 1, 1, 0])}
    >>> round(best_log_likelihood(decoct.models.LogisticRegression(), rows), 6)  # at odds of 3 : 1
    -0.562335
    """
    potentials = Potentials(model, encoded(as_rows(rows), model))
    n, start = potentials.n_rows, potentials.space.flatten(potentials.initial)
    diagonal = np.abs(np.diag(potentials.curvature(start).hessian))
    # any positive number where the likelihood is flat
    scale = np.where(diagonal > 0.0, diagonal, float(diagonal.max()) or 1.0)
    z, reached = start, []
    for ridge in RIDGES:
        z = _find_ridge_mode(potentials, start, ridge * scale, z)
        reached.append(float(potentials.totals(z[None])[0]) / n)
        gains = np.diff(reached[-3:])
        if len(gains) == 2 and gains.max() < tolerance:
            return max(reached)
    raise ModelError(
        f"The log-likelihood of these rows still rises, at {reached[-1]:.6g} nats per row, where "
        f"the ridge has fallen to {RIDGES[-1]:.0e}: it has no bound, or none within reach."
    )


def _find_ridge_mode(
    potentials: Potentials,
    centre: Float[np.ndarray, " d"],
    ridge: Float[np.ndarray, " d"],
    start: Float[np.ndarray, " d"],
) -> Float[np.ndarray, " d"]:
    def evaluate(z: np.ndarray) -> Curvature:
        offset = z - centre
        penalty = Curvature(-0.5 * float(ridge @ offset**2), -ridge * offset, -np.diag(ridge))
        # where a step overflows, Newton's method takes a shorter one
        return potentials.curvature(z, strict=False).plus(penalty)

    mode = maximise(evaluate, start, tolerance=1e-12 * potentials.n_rows)
    if not mode.status.ok:
        raise ModelError(
            "The largest log-likelihood of these rows was not found: at the ridge "
            f"{ridge.max():.0e} Newton's method ended with {mode.status.name}; the likelihood may "
            "have no bound (a scale that can fall to 0) or not be smooth."
        )
    return mode.z
