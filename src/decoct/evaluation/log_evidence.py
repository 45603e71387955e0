"""The evidence log p(data): that of the coreset, corrected by the certificate.

With L(θ) = Σ_n f_n over all rows and L_w = s + Σ w_n f_n of the coreset, the certificate's log
ratios are D = L − L_w, and

    log Z = log ∫ π₀ e^L dθ = log Z_w + log E_{π_w}[e^D] = log Z_w + E_{π_w}[D] + KL(π_w‖π).

Z_w = ∫ π₀ e^{L_w} dθ is found by bridge sampling (Meng & Wong 1996, Section 4.2), which needs the
M kept rows only. With p the unnormalised density of π_w at n₁ draws of it, g a Gaussian at n₂
draws of it, and s_i = n_i/(n₁ + n₂), the estimate is the fixed point of

    Z_w = mean_g [p / (s₁ p + s₂ Z_w g)] / mean_{π_w} [g / (s₁ p + s₂ Z_w g)].

The Gaussian is fitted to one half of the draws and the bridge uses the other, and vice versa
(Gronau et al. 2017); the two logarithms are averaged. Its standard error is that of
the two means, autocorrelation included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import expit

from decoct.certificates.certificate import Certificate
from decoct.coreset import Coreset
from decoct.errors import ModelError, RequestError
from decoct.evaluation.certified import certificate_of, check_draws
from decoct.runtime.randomness import check_seed, host_rng
from decoct.samplers.base import WeightedDensity, log_densities
from decoct.stats.chains import error_of_mean, independent_draws
from decoct.stats.divergences import Gaussian
from decoct.stats.verdict import Grade

SHRINKAGES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shrinkages of a fitted covariance towards its diagonal, for few draws a parameter."""

MOST_ERROR = 0.5
"""Standard error of log Z_w, in nats, above which the estimate is refused."""


@dataclass(frozen=True)
class Evidence:
    """log p(data) under a model, in nats.

    Attributes
    ----------
    value, se
        log p(data) of all rows, and its Monte Carlo standard error.
    coreset_value, coreset_se
        log Z_w, the same of the coreset posterior, by bridge sampling.
    correction, correction_se
        log(Z/Z_w), from the certificate.
    verdict
        Verdict of the certificate on the draws, and so on this estimate.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> found = decoct.log_evidence(coreset, rows, coreset.sample(sampler=decoct.samplers.Exact()))
    >>> bool(abs(found.value - found.coreset_value - found.correction) < 1e-9)
    True
    """

    value: float
    se: float
    coreset_value: float
    coreset_se: float
    correction: float
    correction_se: float
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, JSON-ready."""
        return asdict(self)

    def __repr__(self) -> str:
        return (
            f"log p(data) = {_with_error(self.value, self.se)} nats: the coreset's "
            f"{_with_error(self.coreset_value, self.coreset_se)}, and all rows add "
            f"{_with_error(self.correction, self.correction_se)}.\nCertificate: {self.verdict}."
        )


def _with_error(value: float, se: float) -> str:
    """Return both with two digits of the error, and at most six decimals."""
    decimals = int(np.clip(1 - np.floor(np.log10(max(se, 1e-6))), 0, 6))
    return f"{value:,.{decimals}f} ± {se:.{decimals}f}"


def log_evidence(
    coreset: Coreset,
    rows: Any,
    draws: xr.DataTree | np.ndarray,
    *,
    check: Certificate | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Evidence:
    """Return log p(data) = log ∫ π₀(θ) Π_n p(row n | θ) dθ of all rows, with its error.

    The value is the evidence only if log-likelihood and log prior are normalised. All of
    `decoct.models` are, and so are NumPyro, PyMC and Bambi models of proper priors without
    ``numpyro.factor`` or ``pm.Potential``. The functions of a `decoct.Model` are taken as they are:
    a constant that they lack (½ log 2π a row, log y!, that of the prior) is missing here, and an
    improper prior has no evidence. A formula's response counts as the formula transforms it.

    Parameters
    ----------
    coreset
        What `decoct.build` or `decoct.load` returned.
    rows
        The table it was built from; None with ``check``.
    draws
        Draws of the coreset posterior, as for `decoct.check`; at least 100, better thousands: they
        need the M kept rows only.
    check
        The certificate of these draws, if there is one; else it is made here.
    seed
        Seed of the bridge, and of the certificate that is made here.
    progress
        Show progress on standard error; None shows it on a terminal.

    Returns
    -------
    Evidence
        Differences of two of them are log Bayes factors; their squared errors add.

    Raises
    ------
    RequestError
        The certificate refuses the draws, is of one mode of several, of other draws, or missing
        together with the rows; the draws are too few, of another model, or leave log Z_w uncertain
        by half a nat or more; a NumPyro, PyMC or Bambi model has a flat prior.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(1000, 2))}
    >>> model = decoct.models.GaussianMean(covariance=np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> found = decoct.log_evidence(coreset, rows, coreset.sample())
    >>> round(found.value, 2)  # a Gaussian likelihood: exact
    -2845.18
    """
    z = check_draws(coreset, draws)
    for name in getattr(coreset.model, "improper", ()):
        raise RequestError(
            f"The prior of '{name}' has no integral, and so the model no evidence; give it a "
            "proper prior."
        )
    check = certificate_of(coreset, rows, draws, check, seed, progress)
    if check.grade is Grade.ONE_MODE:
        raise RequestError(
            f"The certificate's verdict is '{check.verdict}', and the evidence would lack the mass "
            "of the other modes; sample those too, with other starts or more chains."
        )
    rng = host_rng(jax.random.fold_in(jax.random.key(check_seed(seed)), 2))
    value, se = log_normaliser(coreset, z, rng)
    if not se < MOST_ERROR:
        raise RequestError(
            f"From these {z.shape[0] * z.shape[1]} draws, log Z of the coreset posterior has a "
            f"standard error of {se:.1g} nats. Above {MOST_ERROR} the error itself is unreliable; "
            "take more draws."
        )
    relative = np.exp(check.log_ratios - check.log_ratios.max())
    correction = check.mean_log_ratio + check.kl
    correction_se = float(np.hypot(error_of_mean(relative / relative.mean()), check.sampling_se))
    return Evidence(
        value=value + correction,
        se=float(np.hypot(se, correction_se)),
        coreset_value=value,
        coreset_se=se,
        correction=correction,
        correction_se=correction_se,
        verdict=check.verdict,
    )


def log_normaliser(
    coreset: Coreset, z: Float[np.ndarray, "chains S d"], rng: np.random.Generator
) -> tuple[float, float]:
    """Return log Z_w by bridge sampling, and its standard error."""
    half = z.shape[1] // 2
    halves = z[:, :half], z[:, half : 2 * half]
    more: list[Gaussian] = []
    if not coreset.density.has_likelihood_params:
        with contextlib.suppress(ModelError):  # no maximum: Gaussians fitted to draws are left
            more.append(coreset.laplace())
    bridges = [
        _bridge(coreset.density, _proposal(fitted, other, more), other, rng)
        for fitted, other in (halves, halves[::-1])
    ]
    values, at_draws, at_proposals = zip(*bridges, strict=True)
    se = error_of_mean(np.concatenate(at_draws[::-1], axis=1))
    proposals_se = error_of_mean(np.concatenate(at_proposals)[:, None])
    return float(np.mean(values)), float(np.hypot(se, proposals_se))


def _proposal(
    fitted: Float[np.ndarray, "chains S d"],
    other: Float[np.ndarray, "chains S d"],
    more: Sequence[Gaussian],
) -> Gaussian:
    """Return the Gaussian with the largest likelihood at the other draws.

    Candidates are fits to some draws with covariances shrunk towards the diagonal, and ``more``.
    """
    dim = fitted.shape[-1]
    flat, judges = fitted.reshape(-1, dim), other.reshape(-1, dim)
    cov, mean = np.atleast_2d(np.cov(flat, rowvar=False)), flat.mean(axis=0)
    diagonal = np.diag(np.diag(cov))
    shares = SHRINKAGES if len(flat) > dim else SHRINKAGES[1:]  # else it is singular
    fits = [Gaussian(mean, cov + share * (diagonal - cov)) for share in shares]
    return max([*fits, *more], key=lambda one: float(one.log_density(judges).mean()))


def _bridge(
    density: WeightedDensity,
    proposal: Gaussian,
    draws: Float[np.ndarray, "chains S d"],
    rng: np.random.Generator,
) -> tuple[float, Float[np.ndarray, "chains S"], Float[np.ndarray, " n"]]:
    """Return log Z_w, and what each draw of π_w and of the proposal adds to it, relatively."""
    flat = draws.reshape(-1, draws.shape[-1])
    proposed = proposal.sample(rng, len(flat))
    at_draws, at_proposed = (
        log_densities(density, one) - proposal.log_density(one) for one in (flat, proposed)
    )
    if np.isnan(at_draws).any() or np.isnan(at_proposed).any():
        raise ModelError(
            "The log density of the coreset posterior is NaN at a point among its draws; make "
            "log_likelihood and log_prior numbers or minus infinity everywhere."
        )
    count = independent_draws(at_draws.reshape(draws.shape[:2]))
    share = count / (count + len(proposed))
    odds = np.log(share) - np.log1p(-share)

    def excess(log_z: float) -> float:
        of_draws = share * expit(log_z - odds - at_draws).mean()
        return float(of_draws - (1.0 - share) * expit(at_proposed + odds - log_z).mean())

    ends = at_draws.min() + odds - 40.0, at_draws.max() + odds + 40.0
    root: Any = brentq(excess, *ends, xtol=1e-10)
    log_z = float(root)
    of_draws = expit(log_z - odds - at_draws)
    of_proposed = expit(at_proposed + odds - log_z)
    relative = of_draws / of_draws.mean(), of_proposed / of_proposed.mean()
    return log_z, relative[0].reshape(draws.shape[:2]), relative[1]
