"""Drift of a posterior since rows were compressed, in sd of the posterior of that time.

The error of a site and its weights is of third order there, and grows with the distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.coreset import Coreset
from decoct.passes.potentials import to_likelihood
from decoct.report import Status
from decoct.runtime import progress
from decoct.runtime.precision import float64
from decoct.samplers.base import Sampler, WeightedDensity
from decoct.stats.distances import DRAWS_PER_PARAMETER, distance, moments
from decoct.stats.divergences import Gaussian

DRIFTED = 5.0
"""Posterior sd, by `distance`, above which no KL is predicted."""

LEAST_DRAWS, MOST_DRAWS = 400, 2000
"""Fewest and most draws that locate a posterior."""


def with_drift(
    key: jax.Array, parts: Sequence[Coreset], union: Coreset, sampler: Sampler
) -> Coreset:
    """Return the union of parts, with ``drift`` in its report's last round.

    That is the largest distance of the posterior of all parts from that of a part, in sd of the
    latter, now or before. The predicted KL includes ½Var of the terms of third order, which a sum
    of sites is without.
    """
    if len(parts) == 1:
        return union
    progress.begin("drawing from the parts", len(parts) + 1, "posteriors")
    places: list[Gaussian] = []
    z = np.zeros((0, union.density.dim))
    for number, density in enumerate([*(part.density for part in parts), union.density]):
        n = min(MOST_DRAWS, max(LEAST_DRAWS, DRAWS_PER_PARAMETER * density.dim))
        z = sampler.draw(jax.random.fold_in(key, number), density, n).flat
        relabelled = getattr(density.model, "relabelled", None)  # clusters of a mixture
        if places and relabelled is not None:
            z = relabelled(z, places[0].mean)
        places.append(moments(z))
        progress.advance(1, "posteriors")
    drift = max(distance(place, places[-1].mean) for place in places[:-1])
    report, predicted = union.report, union.report.predicted_kl
    if predicted is not None:
        predicted += 0.5 * float(np.var(_third_order(parts, union.density, z)))
    # an error of KL nats can itself move a posterior by √(2 KL) sd
    if drift > DRIFTED + np.sqrt(2.0 * (predicted or 0.0)):
        report = replace(report, status=Status.DRIFTED)
    if drift > DRIFTED or report.status is Status.DRIFTED:
        predicted = None
    last = {**report.rounds[-1], "drift": max(drift, report.rounds[-1].get("drift", 0.0))}
    return replace(union, report=replace(report, rounds=[last], predicted_kl=predicted))


@float64
def _third_order(
    parts: Sequence[Coreset], density: WeightedDensity, z: Float[np.ndarray, "S d"]
) -> Float[np.ndarray, " S"]:
    """Return the sum of the parts' terms of third order at draws of their union."""
    phi = np.asarray(to_likelihood(density.model, density.space, jnp.asarray(z)))
    sites = [part.site for part in parts if part.site is not None]
    terms = (site.log_density(phi) - site.quadratic().log_density(phi) for site in sites)
    return sum(terms, np.zeros(len(z)))
