"""A model of rows that carry weights, whose prior includes a site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from decoct.models.base import AbstractModel, Params, RawRows, forwarded
from decoct.models.parameters import NoiseScale, ParameterSpace
from decoct.models.site import GaussianSite


class Reweighted(AbstractModel):
    """A model whose rows carry w_n in a column ``weight``, w_n f_n, with the prior π₀ e^s."""

    inner: AbstractModel
    site: GaussianSite | None
    weight: str = eqx.field(static=True)

    def unweighted(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the inner model."""
        return {name: column for name, column in rows.items() if name != self.weight}

    def init(self, rows: RawRows) -> Params:
        return self.inner.init(self.unweighted(rows))

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        return rows[self.weight] * self.inner.log_likelihood(params, self.unweighted(rows))

    to_likelihood_params = forwarded("inner", "to_likelihood_params")
    to_effects = forwarded("inner", "to_effects")

    @property
    def noise_scale(self) -> NoiseScale | None:
        return self.inner.noise_scale

    def log_prior(self, params: Params) -> Float[Array, ""]:
        prior = self.inner.log_prior(params)
        if self.site is None:
            return prior
        phi = ParameterSpace.ravel(self.to_likelihood_params(params))
        return prior + self.site.log_density(phi)

    def design_matrix(self, rows: Mapping[str, Array]) -> Float[Array, "n d"] | None:
        return self.inner.design_matrix(self.unweighted(rows))

    def log_likelihood_at(
        self, predictor: Float[Array, " n"], rows: Mapping[str, Array]
    ) -> Float[Array, " n"]:
        return rows[self.weight] * self.inner.log_likelihood_at(predictor, self.unweighted(rows))
