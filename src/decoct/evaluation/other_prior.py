"""Another prior for a model: its likelihood, parameters and names, with a log prior of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.coreset import Coreset
from decoct.errors import RequestError
from decoct.models.base import AbstractModel, Params, forwarded
from decoct.models.fingerprint import find_difference, fingerprint
from decoct.models.parameters import NoiseScale
from decoct.runtime.precision import float64


class OtherPrior(AbstractModel):
    """A model with another prior, ``log_prior(params) -> scalar``."""

    inner: AbstractModel
    prior: Callable[[Params], Any] = eqx.field(static=True)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        return jnp.asarray(self.prior(params), dtype=jnp.float64)

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.inner.columns

    @property
    def noise_scale(self) -> NoiseScale | None:
        return self.inner.noise_scale

    init = forwarded("inner", "init")
    encode = forwarded("inner", "encode")
    log_likelihood = forwarded("inner", "log_likelihood")
    potentials = forwarded("inner", "potentials")
    to_likelihood_params = forwarded("inner", "to_likelihood_params")
    to_effects = forwarded("inner", "to_effects")
    design_matrix = forwarded("inner", "design_matrix")
    log_likelihood_at = forwarded("inner", "log_likelihood_at")
    constrain = forwarded("inner", "constrain")
    coords = forwarded("inner", "coords")
    dims = forwarded("inner", "dims")


def alternatives(coreset: Coreset, priors: Any) -> dict[str, AbstractModel]:
    """Return the model with each of the priors, by name."""
    if isinstance(priors, list | tuple):
        priors = {f"prior {i}": prior for i, prior in enumerate(priors, start=1)}
    if not isinstance(priors, Mapping) or not all(isinstance(name, str) for name in priors):
        raise RequestError(
            "priors must be a list of log priors or models, or map names to them, such as "
            f"{{'wide': LogisticRegression(prior_scale=10.0)}}, not {priors!r}."
        )
    return {name: _alternative(coreset, name, prior) for name, prior in priors.items()}


def _alternative(coreset: Coreset, name: str, prior: Any) -> AbstractModel:
    if isinstance(prior, AbstractModel):
        difference = _difference(coreset, prior)
        if difference is not None:
            raise RequestError(
                f"The prior '{name}' is a {type(prior).__name__} that is another model: "
                f"{difference}. It may differ from the coreset's model in its prior alone. Give a "
                "prior with another support as a function of the unconstrained parameters, with "
                "the log Jacobian."
            )
        return prior
    if isinstance(prior, type) or not callable(prior):
        raise RequestError(
            f"The prior '{name}' is neither a function log_prior(params) nor a model, but "
            f"{prior!r}."
        )
    _require_number(coreset, name, prior)
    return OtherPrior(coreset.model, prior)


@float64
def _require_number(coreset: Coreset, name: str, prior: Callable[[Params], Any]) -> None:
    """Refuse a function that cannot be traced, or does not return one number."""
    space = coreset.density.space
    try:
        found = jax.eval_shape(lambda z: prior(space.unflatten(z)), jnp.zeros(coreset.dim))
    except Exception as error:
        raise RequestError(
            f"The prior '{name}' fails: {type(error).__name__}: {error}. A log prior takes the "
            "unconstrained parameters of the model by name, and uses jax.numpy."
        ) from error
    dtype = getattr(found, "dtype", np.dtype(bool))
    if getattr(found, "shape", None) != () or not jnp.issubdtype(dtype, jnp.floating):
        raise RequestError(
            f"The prior '{name}' returns {found}, and not one real number; sum over the entries."
        )


@float64
def _difference(coreset: Coreset, model: AbstractModel) -> str | None:
    """Return in what else than its prior a model differs from the coreset's, or None.

    Values on the natural scale reveal other supports, where the same unconstrained parameter is
    another quantity.
    """
    known = coreset.model
    if type(model) is not type(known):
        return f"the coreset's is a {type(known).__name__}"
    rows = known.encode(coreset.rows, coreset.indices)
    values = {k: v for k, v in fingerprint(known, rows).items() if k != "log_prior"}
    difference = find_difference(values, model, rows)
    if difference is not None:
        return difference
    params = coreset.density.space.unflatten(jnp.asarray(values["at"][1]))
    before, after = known.constrain(params), model.constrain(params)
    for name in before:
        if name not in after or not np.allclose(before[name], after[name], rtol=1e-4):
            return f"its parameter '{name}' is missing or has another support"
    return None
