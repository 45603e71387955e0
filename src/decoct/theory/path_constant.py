"""Proposition 2's constant from draws along the path (Campbell & Beronov 2019).

C of `hilbert_constant`, for models without closed forms: metrics over all N rows from draws of π̂
and of π_γ(U), U ~ Unif[0, 1].
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from decoct.data.base import Rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.runtime.precision import float64
from decoct.samplers.base import Sampler
from decoct.theory.hilbert_constant import HilbertBound, MetricRange
from decoct.theory.information_geometry import hilbert_objective, metric
from decoct.theory.posterior_path import PosteriorPath, paired_error


@float64
def hilbert_bound_from_draws(
    model: AbstractModel,
    rows: Rows | object,
    weights: np.ndarray,
    reference: Float[np.ndarray, "..."],
    *,
    key: jax.Array,
    sampler: Sampler | None = None,
    points: int = 20,
    draws: int = 1000,
) -> HilbertBound:
    """Estimate C and J of Proposition 2 from draws: KL(π_w‖π) + KL(π‖π_w) ≤ C J.

    Both metrics are over all N rows, N × S numbers each. C comes out too large when S is not many
    times the rank of the metric: see `largest_ratio`. `hilbert_bound` is exact where there are
    closed forms.

    Parameters
    ----------
    reference : (S, d)
        Draws of the weighting distribution π̂ in unconstrained space, more of them than rows.

    Other parameters as for `path_divergences`, with ``points`` in all.

    Raises
    ------
    RequestError
        As for `path_divergences`; or the reference draws do not fit the model, or are too few to
        see the range of their metric.
    ModelError, RowsError
        As for `path_divergences`.
    """
    path = PosteriorPath.of(model, rows, weights, sampler)
    at_reference = metric(path.vectors(_draws_of(reference, path.potentials.dim)))
    seen = MetricRange.of(at_reference)
    ratios = np.array(
        [
            seen.largest_ratio(metric(path.vectors(drawn.flat[:draws])))
            for _, drawn in path.points("symmetrised", key, points, draws)
        ]
    )
    objective = hilbert_objective(at_reference, path.weights)
    if not np.isfinite(ratios).all():
        return HilbertBound(np.inf, 0.0, objective, False)
    return HilbertBound(float(ratios.mean()), paired_error(ratios), objective, False)


def _draws_of(draws: np.ndarray, dim: int) -> Float[np.ndarray, "S d"]:
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim != 2 or len(draws) < 2 or draws.shape[1] != dim:
        raise RequestError(
            f"The reference draws have the shape {draws.shape}; (S, {dim}) is wanted, with at "
            "least two draws."
        )
    return draws
