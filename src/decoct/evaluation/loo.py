"""Leave-one-out of every row of the full table, at draws of the coreset posterior, in one pass.

    elpd = Σ_n log p(y_n | all rows but n),      N terms, one each row of the table.

The draws are of π_w, which stands for the posterior π of all N rows. Leaving out row n therefore
weighs them by exp(D_s − f_n(θ_s)), with D_s = log π/π_w from a certificate, or D_s = 0 where they
are taken for draws of π (`stats.psis`).

With a sample of m rows the elpd is estimated by differences to what is cheap for all of them, the
log-likelihoods ℓ_n = f_n(θ̄) at the mean of the draws (Magnusson et al. 2020, Eq. 7 to 9):

    elpd ≈ Σ_n ℓ_n + N ē,    e_n = elpd_n − ℓ_n,      Var = N² (1 − m/N) s_e²/m.
"""

from __future__ import annotations

import warnings
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from decoct.certificates.certificate import Certificate, log_ratios_at, table_of, verify
from decoct.coreset import Coreset, require_coreset
from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import CoresetFileError, RequestError
from decoct.evaluation.certified import (
    are_corrected,
    refuse_corrected,
    require_moving,
    require_same,
)
from decoct.passes.by_row import RowStatistic
from decoct.passes.pools import Pool
from decoct.passes.potentials import Potentials
from decoct.runtime.checks import is_whole
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import check_seed, uniform_sample
from decoct.runtime.resources import keep_buffers, use_compilation_cache
from decoct.samplers.datatree import refuse_weighted, unconstrained
from decoct.samplers.pointwise import REASON, is_only_kept
from decoct.stats.chains import FEWEST_RATIOS, USABLE_KHAT
from decoct.stats.psis import (
    LogRatios,
    leave_one_out,
    log_ratios,
    relative_efficiency,
    tail_length,
)
from decoct.stats.verdict import SMALL_KL, Grade, grade_of, judge

NEGLIGIBLE = 2.0 * SMALL_KL
"""lpd_n − elpd_n in nats, twice the KL of leaving row n out, below which its k-hat is ignored."""

OTHER = 0.1
"""Nats by which D_s differs from that of the certificate where the table is another one: rows that
a certificate draws leave a tenth of that."""

UNUSABLE = "These draws are too far from the full posterior for leave-one-out."

if TYPE_CHECKING:
    import xarray as xr
    from arviz_stats import ELPDData  # pyright: ignore[reportPrivateImportUsage]


def loo(
    coreset: Coreset,
    rows: Rows | Any,
    draws: xr.DataTree | np.ndarray,
    *,
    check: Certificate | None = None,
    observations: int | None = None,
    reff: float | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> ELPDData:
    """Return leave-one-out cross-validation of all rows, for ``arviz_stats.compare``.

    Uses Pareto-smoothed importance sampling; the numbers equal those of ``arviz.loo`` (before
    arviz-stats 1.3, its standard error divides by N in place of N − 1). The N × S
    matrix of log-likelihoods is never stored: one pass evaluates chunks and stores three numbers a
    row.

    Parameters
    ----------
    coreset
        What `decoct.build` or `decoct.load` returned.
    rows
        The table it was built from, all of it; never the kept rows.
    draws
        Draws from the coreset posterior: what ``coreset.sample()`` or ``check.correct()`` returned,
        or an array (n, d) or (chains, n, d) of unconstrained parameters.
    check
        The certificate of these draws, by `decoct.check`. With it the draws that it picked are
        corrected towards the full posterior on the way; give the draws that were checked, and not
        corrected ones. Without it, the draws are taken for draws of the full posterior, and all of
        them are used; those of a coreset posterior that is far from it are refused.
    observations
        None: every row, N × S potentials. A whole number m ≥ 2: the elpd is estimated from m rows
        drawn uniformly and the log-likelihoods of all rows at the mean of the draws and at one of
        them, by which the table is known, 2N + m × S potentials; this needs ``check``, or corrected
        draws. The same seed draws the same rows, so that models can be compared.
    reff
        Effective draws by draws. None computes it as ArviZ does: the mean over the parameters; 1
        for a single chain.
    seed
        Seed of the sample of rows.
    progress
        Show progress on standard error; None shows it on a terminal.

    Returns
    -------
    arviz_stats.ELPDData
        In nats: ``elpd`` and its standard error ``se`` = √(N Var elpd_n), the effective number of
        parameters ``p`` = Σ_n (lpd_n − elpd_n), and of every row ``elpd_i`` and ``pareto_k``, (N,).
        ``good_k`` is min(1 − 1/log₁₀ S, 0.7); ``approx_posterior`` is True with ``check``.

        With ``observations``, ``subsampling_se`` is the standard error of ``elpd`` by the sample of
        rows, and ``se`` an estimate of what it is for all rows; ``loo_subsample_observations`` are
        the rows, and ``elpd_i`` and ``pareto_k`` are NaN elsewhere.

    Raises
    ------
    CoresetFileError
        The table is not the one the coreset was built from.
    RequestError
        The rows are the kept ones, the draws of another model or fewer than 25, the certificate
        another coreset's, missing for a sample of rows, or one that says "do not use".
    PotentialError
        A row is impossible, or its log-likelihood NaN, at one of the draws.

    Warns
    -----
    UserWarning
        k-hat of some rows is above ``good_k``, and leaving one of them out moves the posterior by
        1e-4 nats or more: their elpd_n cannot be trusted, and ``warning`` is True. The certificate
        says "doubtful" or "one mode of several". Without ``check``, the draws are near enough to be
        corrected, but not "good".

    Notes
    -----
    ArviZ warns of any k-hat above ``good_k``. k-hat has no scale: among a million rows there are
    some that are high by chance, though leaving the row out changes nothing.

    k-hat is −inf for a row whose log-likelihood is the same at all draws, and +inf where no Pareto
    distribution fits its largest ratios; ``arviz.loo`` raises an error, or returns NaN.
    ``arviz_stats.loo_approximate_posterior`` with log_p − log_q = D_s returns what ``check`` does,
    but for ``p``, where its lpd_n is that of the draws before they are corrected.

    References
    ----------
    Vehtari, Gelman & Gabry (2017), *Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC*. Magnusson, Andersen, Jonasson & Vehtari (2019), *Bayesian
    leave-one-out cross-validation for large data*; (2020), *Leave-one-out cross-validation for
    Bayesian model comparison in large data*.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(1000, 2))}
    >>> model = decoct.models.GaussianMean(covariance=np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> draws = coreset.sample(draws=250)
    >>> loo = decoct.loo(coreset, rows, draws, check=decoct.check(coreset, rows, draws))
    >>> bool(abs(loo.p - 2) < 0.5), loo.elpd_i.shape
    (True, (1000,))
    """
    use_compilation_cache()
    keep_buffers()
    require_coreset(coreset)
    seed = check_seed(seed)
    dim = coreset.dim  # refuses a coreset without a density, such as a mixture's
    source = _whole_table(coreset, rows, progress)
    if observations is not None and not (
        is_whole(observations, 2) and observations <= source.n_rows
    ):
        raise RequestError(
            f"observations must be a whole number from 2 to {source.n_rows}, the rows of the "
            f"table, or None for all of them, not {observations!r}."
        )
    z, variables = _used_draws(coreset, draws, check, dim)
    is_certified = check is not None or are_corrected(draws)
    if observations is not None and not is_certified:
        raise RequestError(
            "A sample of rows cannot show how far these draws are from the full posterior; give "
            "check=decoct.check(coreset, rows, draws)."
        )
    if check is not None and not check.ok:
        warnings.warn(
            f"The certificate's verdict is '{check.verdict}', and leave-one-out at these draws is "
            "no better.",
            stacklevel=2,
        )
    flat = z.reshape(-1, dim)
    if len(flat) < FEWEST_RATIOS:
        raise RequestError(
            f"There are {len(flat)} draws; leave-one-out needs at least {FEWEST_RATIOS} to smooth "
            "the largest weights, and about a thousand to be useful."
        )
    require_moving(z)
    reff = relative_efficiency(variables) if reff is None else reff
    if not (isinstance(reff, Real) and 0.0 < reff <= len(flat)):
        raise RequestError(
            f"reff, the ratio of effective draws to draws, must be positive and at most "
            f"{len(flat)}, not {reff}; it cannot be computed for chains of fewer than 4 draws."
        )
    statistic = _LeftOut.of(check, len(flat), reff)
    with ProgressBar(progress):
        potentials = verify(coreset, source, "leaving out each row")
        if observations is None:
            totals, found = _from_all(potentials, statistic, flat)
            log_ratios = log_ratios_at(coreset, potentials, z, totals)
            if check is not None:
                _require_same_table(log_ratios, check)
            if not is_certified:
                _warn_of_distance(log_ratios)
        else:
            places = uniform_sample(jax.random.key(seed), source.n_rows, observations)
            totals, found = _from_sample(potentials, statistic, flat, places)
            if check is not None:
                _require_same_table(log_ratios_at(coreset, potentials, z[:1, :1], totals), check)
    return _as_elpd_data(found, len(flat), source.n_rows, is_approximate=check is not None)


class _LeftOut(RowStatistic):
    """elpd_n, k-hat and lpd_n of every row.

    From D_s, shifted so that the largest is 0, the normalised log weights of the draws, and the
    number of a row's ratios that are smoothed.
    """

    shift: Float[np.ndarray, " S"]
    log_weights: Float[np.ndarray, " S"]
    tail: int = eqx.field(static=True)

    @classmethod
    def of(cls, check: Certificate | None, S: int, reff: float) -> _LeftOut:
        tail = tail_length(S, reff)
        if check is None:
            return cls(np.zeros(S), np.full(S, -np.log(S)), tail)
        shift = check.log_ratios.ravel()
        return cls(shift - shift.max(), check.log_weights.ravel(), tail)

    def measure(self, potentials: Float[Array, "S n"]) -> Any:
        lpd = logsumexp(potentials + jnp.asarray(self.log_weights)[:, None], axis=0)
        return log_ratios(potentials, jnp.asarray(self.shift)), lpd

    def finish(self, measured: Any) -> tuple[Float[np.ndarray, " n"], ...]:
        ratios, lpd = measured
        return *leave_one_out(LogRatios(*ratios), self.shift, self.tail), lpd


class _AtFirst(RowStatistic):
    """The potential at the first draw."""

    def measure(self, potentials: Float[Array, "S n"]) -> Any:
        return (potentials[0],)


def _whole_table(coreset: Coreset, rows: Rows | Any, progress: bool | None) -> Rows:
    """Return the raw rows of the table; say why, if they are but the kept ones."""
    table = as_rows(rows)
    try:
        return table_of(coreset, table, progress)
    except CoresetFileError:
        if not is_only_kept(coreset.rows, coreset.n_rows, encoded(table, coreset.model)):
            raise
    raise RequestError(
        f"These are the coreset's own rows: {REASON} Give the table the coreset was built from."
    )


def _used_draws(
    coreset: Coreset, draws: Any, check: Certificate | None, dim: int
) -> tuple[Float[np.ndarray, "chains S d"], list[np.ndarray]]:
    """Return the unconstrained draws, and the variables that their efficiency is judged by."""
    z = unconstrained(draws, dim, coreset.fingerprint)
    is_tree = hasattr(draws, "children")
    variables = [one.to_numpy() for one in draws["posterior"].values()] if is_tree else [z]
    if check is None:
        refuse_weighted(draws)
        return z, variables
    refuse_corrected(draws)
    require_same(coreset, z, check)
    if check.grade is Grade.REFUSED:
        raise RequestError(f"The certificate's verdict is '{check.verdict}'. {UNUSABLE}")
    return z[:, check.picked], [one[:, check.picked] for one in variables]


def _require_same_table(log_ratios: Float[np.ndarray, "chains S"], check: Certificate) -> None:
    """Refuse rows whose D_s, at all draws or at the first ones, is not that of the certificate."""
    chains, S = log_ratios.shape
    known = check.log_ratios[:chains, :S] + check.mean_log_ratio
    # ½Var of the errors of a sample of rows is at most a tenth of the KL
    error = np.sqrt(0.2 * check.kl) if check.sampling_se else 0.0
    if np.sqrt(np.mean(np.square(log_ratios - known))) > OTHER + 4.0 * error:
        raise RequestError(
            "These rows are not those that the certificate was made with; check the draws again, "
            "with this table."
        )


def _warn_of_distance(log_ratios: Float[np.ndarray, "chains S"]) -> None:
    """Refuse draws far from the full posterior; warn where they should be corrected."""
    judged = judge(log_ratios)
    grade = grade_of(judged.kl.reverse, judged.khat)
    if grade is Grade.REFUSED:
        raise RequestError(f"{UNUSABLE} Build a larger coreset; decoct.check says how far.")
    if grade is not Grade.GOOD:
        warnings.warn(
            f"These draws are {judged.kl.reverse:.2g} nats from the full posterior, and taken for "
            "draws of it; give check=decoct.check(coreset, rows, draws) to correct them.",
            stacklevel=3,
        )


def _from_all(
    potentials: Potentials, statistic: _LeftOut, flat: Float[np.ndarray, "S d"]
) -> tuple[Float[np.ndarray, " S"], dict[str, Any]]:
    """Return Σ_n f_n, and leave-one-out of all rows by the names that ArviZ has for it."""
    totals, elpd, khat, lpd = potentials.by_row(flat, statistic)
    return totals, {
        "elpd": elpd.sum(),
        "se": np.sqrt(len(elpd) * elpd.var(ddof=1)),
        "p_i": lpd - elpd,
        "elpd_i": elpd,
        "pareto_k": khat,
    }


def _from_sample(
    potentials: Potentials,
    statistic: _LeftOut,
    flat: Float[np.ndarray, "S d"],
    places: Int[np.ndarray, " m"],
) -> tuple[Float[np.ndarray, " 1"], dict[str, Any]]:
    """Return Σ_n f_n at the first draw, and leave-one-out from the rows at some places.

    By the difference estimator.
    """
    N, m = potentials.n_rows, len(places)
    centre = np.exp(statistic.log_weights) @ flat
    totals, cheap = potentials.by_row(np.stack([centre, flat[0]]), _AtFirst())
    sample = Pool(places, potentials.rows.take(places))
    _, elpd, khat, lpd = potentials.restrict(sample).by_row(flat, statistic)
    errors = elpd - cheap[places]
    variance = N**2 * (1.0 - m / N) * errors.var(ddof=1) / m
    # Eq. 9 of values less a constant, which it does not depend on: no digits are lost
    away = cheap - cheap.mean()
    squares = np.square(away).sum() + N * np.mean(errors * (errors + 2.0 * away[places]))
    spread = squares - ((N * errors.mean()) ** 2 - variance) / N
    pointwise = np.full((3, N), np.nan)
    pointwise[:, places] = elpd, khat, lpd - elpd
    return totals[1:], {
        "elpd": cheap.sum() + N * errors.mean(),
        "se": np.sqrt(max(spread, 0.0)),
        "elpd_i": pointwise[0],
        "pareto_k": pointwise[1],
        "p_i": pointwise[2],
        "elpd_loo_approx": cheap,
        "subsampling_se": float(np.sqrt(variance)),
        "subsample_size": m,
        "loo_subsample_observations": places,
    }


def _as_elpd_data(found: dict[str, Any], S: int, N: int, *, is_approximate: bool) -> ELPDData:
    """Return what ArviZ takes; warn of rows whose elpd cannot be trusted."""
    import arviz_stats
    import xarray as xr

    good_k = float(min(1.0 - 1.0 / np.log10(S), USABLE_KHAT))
    khat, p_i = found["pareto_k"], found.pop("p_i")
    rows = np.count_nonzero(~np.isnan(khat))
    bad = np.flatnonzero((khat > good_k) & ~(np.abs(p_i) < NEGLIGIBLE))
    if len(bad):
        warnings.warn(
            f"k-hat is above {good_k:.2f} in {len(bad):,} of {rows:,} rows, the largest "
            f"{khat[bad].max():.2f} in row {bad[khat[bad].argmax()]}: leaving one of them out "
            "moves the posterior too far for these draws. See pareto_k; take more draws (with a "
            "certificate: decoct.check(..., max_draws=)), or use a likelihood with longer tails.",
            stacklevel=3,
        )
    for name in ("elpd_i", "pareto_k", "elpd_loo_approx"):
        if name in found:
            found[name] = xr.DataArray(found[name], dims="row", name=name)
    # from 1.3 on ArviZ has a class for each kind of result
    own = "ELPDDataLOOSubsample" if "subsample_size" in found else "ELPDDataLOO"
    made = getattr(arviz_stats, own, None) or partial(arviz_stats.ELPDData, kind="loo")
    return made(
        p=N * float(np.nansum(p_i)) / rows,
        n_samples=S,
        n_data_points=N,
        scale="log",
        warning=len(bad) > 0,
        good_k=good_k,
        approx_posterior=is_approximate,
        **found,
    )
