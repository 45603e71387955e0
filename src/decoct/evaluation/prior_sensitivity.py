"""Posteriors under other priors, from one build and one set of draws.

The likelihood part of a certificate's log ratios D_s = Σ_n f_n − s − Σ w_n f_n has no prior in it.
Draws of π_w under the prior π₀ therefore stand for the full posterior under another prior π₁ with
the importance weights

    r_s ∝ exp(D_s + log π₁(θ_s) − log π₀(θ_s)),

Pareto-smoothed (Vehtari et al. 2024). Their k-hat says whether they can be used. Where it is 0.7 or
more the coreset is sampled again with π₁ in place of π₀, which takes its M rows and no pass over
the data; only D_s at the new draws takes one. With t = log π₁ − log π₀ and weights r⁰ ∝ e^D,

    KL(π¹‖π⁰) = Σ r t − log Σ r⁰ e^t

is the divergence of the two full posteriors. Besides, the prior and the likelihood are raised to
the powers 0.99 and 1.01 (Kallioinen et al. 2024), by ArviZ' ``psense_summary``; the prior is the
density on the scale the model is written in (`natural_scale`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Array, Float
from scipy.special import logsumexp

from decoct.certificates.certificate import Certificate, systematic
from decoct.certificates.certificate import check as certify
from decoct.coreset import Coreset
from decoct.errors import RequestError
from decoct.evaluation.certified import FEWEST_EVALUATED, certificate_of, check_draws
from decoct.evaluation.natural_scale import log_jacobians
from decoct.evaluation.prior_results import (
    SENSITIVE,
    UNCERTIFIED,
    Move,
    PriorResult,
    PriorSensitivity,
)
from decoct.models.base import AbstractModel, Params, forwarded
from decoct.models.fingerprint import find_difference, fingerprint
from decoct.models.parameters import NoiseScale
from decoct.passes.model_checks import log_priors
from decoct.runtime.precision import float64
from decoct.runtime.randomness import check_seed
from decoct.samplers.base import Draws, log_densities
from decoct.samplers.datatree import to_datatree, unconstrained
from decoct.samplers.summary import scalars
from decoct.stats.chains import USABLE_KHAT, error_of_mean, smoothed_log_weights
from decoct.stats.verdict import Grade

Prior = AbstractModel | Callable[[Params], Any]


def prior_sensitivity(
    coreset: Coreset,
    draws: xr.DataTree | np.ndarray,
    priors: Mapping[str, Prior] | Sequence[Prior] | None = None,
    *,
    rows: Any = None,
    check: Certificate | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> PriorSensitivity:
    """Compare the posterior with those under other priors, and measure its sensitivity to its own.

    Parameters
    ----------
    coreset
        What `decoct.build` or `decoct.load` returned.
    draws
        Draws of its posterior, as for `decoct.check`; at least 100.
    priors
        Name -> a model that differs from the coreset's in its prior alone, such as
        ``LogisticRegression(prior_scale=10.0)`` or another ``from_numpyro(...)`` with the same
        sites; or a function ``log_prior(params)``, the prior of all unconstrained parameters
        together, up to a constant, Jacobians included. Those of a list are "prior 1", "prior 2",
        ... None: power scaling alone.
    rows
        The table the coreset was built from: for a certificate, and for those of new draws. None
        makes no pass over the data.
    check
        The certificate of these draws, if there is one. Without it and without ``rows`` the result
        is that of the coreset posterior, and not certified.
    seed
        Seed of new draws and of certificates made here.
    progress
        Show progress on standard error; None shows it on a terminal.

    Returns
    -------
    PriorSensitivity
        One `PriorResult` for each prior, and the power scaling of each parameter.

    Raises
    ------
    RequestError
        The certificate refuses the draws or is of others; the draws are too few or of another
        model; the priors are not functions or models, nor a list or mapping of them; one is
        another model, or is not finite at a draw.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(1000, 2))}
    >>> model = decoct.models.GaussianMean(covariance=np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> narrow = decoct.models.GaussianMean(covariance=np.eye(2), prior_covariance=0.01)
    >>> found = decoct.prior_sensitivity(coreset, coreset.sample(), {"narrow": narrow}, rows=rows)
    >>> found.priors[0].reweighted
    True
    """
    check_draws(coreset, draws)
    seed = check_seed(seed)
    models = alternatives(coreset, {} if priors is None else priors)
    if check is not None or rows is not None:
        check = certificate_of(coreset, rows, draws, check, seed, progress)
    old = _Weighted.of(coreset, draws, check)
    log_prior = _log_prior(coreset.model, coreset, old.z)
    results = []
    for name, model in models.items():
        added = _log_prior(model, coreset, old.z) - log_prior
        _require_finite(name, added)
        log_weights, khat = smoothed_log_weights((old.log_ratios + added).ravel())
        new, kl, new_draws = old._replace(log_weights=log_weights.reshape(added.shape)), np.nan, ""
        if khat < USABLE_KHAT and new.ess >= FEWEST_EVALUATED:
            kl = float((new.weights * added).sum() - logsumexp(old.log_weights + added))
        else:
            other = replace(coreset, model=model)
            new, new_draws = _sample(other, rows, old.z.shape, seed, progress)
        moves = () if new is None else _moves(old, new)
        ess = 0.0 if new is None else new.ess
        results.append(PriorResult(name, khat, ess, kl, new_draws, moves))
    verdict = "" if check is None else check.verdict
    return PriorSensitivity(tuple(results), _power_scaling(coreset, old, log_prior), verdict)


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
    # a method of a model holds arrays, and the field must not
    return OtherPrior(coreset.model, lambda params: prior(params))


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


class _Weighted(NamedTuple):
    """Draws that stand for a posterior by their normalised weights.

    ``z`` are unconstrained; ``values`` has scalar parameters on their natural scale. The log ratios
    are D_s, or 0 without a certificate.
    """

    z: Float[np.ndarray, "chains S d"]
    values: dict[str, Float[np.ndarray, "chains S"]]
    log_ratios: Float[np.ndarray, "chains S"]
    log_weights: Float[np.ndarray, "chains S"]

    @classmethod
    def of(
        cls, coreset: Coreset, draws: xr.DataTree | np.ndarray, check: Certificate | None
    ) -> _Weighted:
        """Return the draws that were checked, or all of them; parameters that vary."""
        z = unconstrained(draws, coreset.dim)
        if check is None:
            equal = np.zeros(z.shape[:2])
            log_ratios, log_weights = equal, equal - np.log(equal.size)
        else:
            z, log_ratios, log_weights = z[:, check.picked], check.log_ratios, check.log_weights
        space = coreset.density.space
        tree = to_datatree(coreset.model, space, coreset.rows, Draws(z, "given"))
        values = {name: x for name, x in scalars(tree) if np.ptp(x) > 0.0}
        return cls(z, values, log_ratios, log_weights)

    @property
    def weights(self) -> Float[np.ndarray, "chains S"]:
        return np.exp(self.log_weights)

    @property
    def ess(self) -> float:
        return float(1.0 / np.square(self.weights).sum())

    def summary(self, name: str) -> _Summary:
        """Return mean and standard deviation of a parameter, and each draw's part in them."""
        x, weights = self.values[name], self.weights
        mean = float((weights * x).sum())
        sd = float(np.sqrt((weights * np.square(x - mean)).sum()))
        standard, relative = (x - mean) / sd, weights.size * weights
        return _Summary(mean, sd, relative * standard, relative * 0.5 * (standard**2 - 1.0))


class _Summary(NamedTuple):
    """A weighted mean and standard deviation; influences of draws on mean/sd and on log sd."""

    mean: float
    sd: float
    on_mean: Float[np.ndarray, "chains S"]
    on_log_sd: Float[np.ndarray, "chains S"]


def _moves(old: _Weighted, new: _Weighted) -> tuple[Move, ...]:
    """Return how far each parameter moves."""

    def error(of_new: np.ndarray, of_old: np.ndarray) -> float:
        if old.z is new.z:  # the same draws, and most of the error is common to both
            return error_of_mean(of_new - of_old)
        return float(np.hypot(error_of_mean(of_new), error_of_mean(of_old)))

    moves = []
    for name in old.values:
        before, after = old.summary(name), new.summary(name)
        shift, ratio = (after.mean - before.mean) / before.sd, after.sd / before.sd
        shift_se = error(ratio * after.on_mean, before.on_mean + shift * before.on_log_sd)
        ratio_se = ratio * error(after.on_log_sd, before.on_log_sd)
        moves.append(Move(name, shift, shift_se, ratio, ratio_se))
    return tuple(moves)


def _sample(
    coreset: Coreset, rows: Any, shape: tuple[int, ...], seed: int, progress: bool | None
) -> tuple[_Weighted | None, str]:
    """Return new draws, with rows weighted by their certificate, and what it says of them.

    No draws where it refuses them.
    """
    draws = coreset.sample(draws=shape[1], chains=shape[0], seed=seed, progress=progress)
    if rows is None:
        return _Weighted.of(coreset, draws, None), UNCERTIFIED
    check = certify(coreset, rows, draws, seed=seed, progress=progress)
    refused = check.grade is Grade.REFUSED
    return None if refused else _Weighted.of(coreset, draws, check), check.grade.value


@float64
def _log_prior(
    model: AbstractModel, coreset: Coreset, z: Float[np.ndarray, "chains S d"]
) -> Float[np.ndarray, "chains S"]:
    """Return the model's log prior at the draws."""
    values = log_priors(model, coreset.density.space, jnp.asarray(z.reshape(-1, z.shape[-1])))
    return np.asarray(values).reshape(z.shape[:2])


def _require_finite(name: str, added: Float[np.ndarray, "chains S"]) -> None:
    if np.isfinite(added).all():
        return
    chain, draw = np.argwhere(~np.isfinite(added))[0]
    raise RequestError(
        f"The log prior '{name}' is {added[chain, draw]} at draw {draw} of chain {chain}; a log "
        "prior takes unconstrained parameters and must be finite at all of them; add the log "
        "Jacobian of every parameter that has bounds."
    )


def _power_scaling(
    coreset: Coreset, posterior: _Weighted, log_prior: Float[np.ndarray, "chains S"]
) -> pd.DataFrame:
    """Return ArviZ' sensitivities, at draws resampled by their weights."""
    from arviz_base import from_dict
    from arviz_stats.psense import psense_summary

    flat = posterior.z.reshape(-1, posterior.z.shape[-1])
    of_coreset = log_densities(coreset.density, flat).reshape(log_prior.shape) - log_prior
    log_likelihood = of_coreset + posterior.log_ratios
    jacobians = log_jacobians(coreset.model, coreset.density.space, flat)
    log_prior = log_prior - jacobians.reshape(log_prior.shape)
    order = systematic(posterior.weights.ravel(), 0)
    groups = {
        "posterior": posterior.values,
        "log_prior": {"total": log_prior - log_prior.mean()},
        "log_likelihood": {"total": log_likelihood - log_likelihood.mean()},
    }
    resampled = {
        group: {name: x.ravel()[order].reshape(x.shape) for name, x in values.items()}
        for group, values in groups.items()
    }
    return psense_summary(from_dict(resampled), threshold=SENSITIVE, round_to=6)
