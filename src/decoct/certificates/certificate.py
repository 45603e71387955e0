"""The certificate: how far the coreset posterior is from the full one.

With draws θ_s of π_w, s the site if there is one, and D_s = Σ_n f_n(θ_s) − s(θ_s) − Σ w_n f_n(θ_s),

    KL(π_w‖π) = log mean e^D − mean D,    KL(π‖π_w) = Σ r D − log mean e^D,  r = softmax(D),

and r, Pareto-smoothed, are importance weights from π_w to π; their k-hat says whether they can be
trusted (Vehtari et al. 2024; `stats.verdict`). These figures cover only regions with draws. R-hat
and effective sample size judge the draws of π_w; a search for maxima of π_w finds modes without
draws (`samplers.modes`).

Σ_n f_n comes from a pass over all rows at all draws, or on large tables from expansions of all rows
and a sample of them (`row_estimate`), where that is as good.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from decoct.certificates.mode_probe import ModeProbe, ModeSearch
from decoct.certificates.row_estimate import estimate_totals, is_cheaper
from decoct.coreset import Coreset, require_coreset
from decoct.data.base import Rows
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.tables import counted_rows
from decoct.data.tables import rows as as_rows
from decoct.data.verified_rows import VerifiedRows, require_same
from decoct.errors import CoresetFileError, PotentialError, RequestError
from decoct.passes.potentials import Potentials
from decoct.runtime.checks import checked_whole
from decoct.runtime.progress import ProgressBar, begin
from decoct.runtime.randomness import check_seed
from decoct.runtime.resources import keep_buffers, use_compilation_cache
from decoct.samplers.datatree import unconstrained
from decoct.stats.chains import FEWEST_RATIOS, MIXED_RHAT, USABLE_KHAT
from decoct.stats.convergence import convergence
from decoct.stats.verdict import MOST_KL, Grade, Judgement, grade_of, is_known, judge

CORRECTED = "corrected"
"""Attribute of a posterior whose draws are those of the full one."""

NAMED = 5
"""Parameters that a verdict names."""

FEWEST_DRAWS = 100
"""Effective draws below which a certificate is doubtful."""

SAYS = {
    Grade.GOOD: "the draws can be used as draws of the full-data posterior",
    Grade.USABLE: "correct the draws (check.correct) before you use them",
    Grade.DOUBTFUL: "importance weights still work, but keep more rows",
    Grade.REFUSED: (
        "the coreset posterior is too far from the full one to be corrected; keep more rows"
    ),
}


@dataclass(frozen=True, eq=False)
class Certificate:
    """The certificate of a coreset.

    Attributes
    ----------
    kl, kl_se
        KL(π_w‖π) in nats, and its Monte Carlo standard error (autocorrelation and the sampling of
        rows included).
    kl_interval
        A 95 % interval of KL(π_w‖π), in nats. At a k-hat of 0.7 and more its lower end is a lower
        bound, ``kl`` is low on average, and there is no upper end (infinity).
    forward_kl, forward_kl_se
        KL(π‖π_w) in nats, and its standard error; NaN at a k-hat of 0.7 and more, where no weights
        estimate it.
    half_variance
        ½Var(D), the leading term of both.
    khat
        Pareto k-hat of the importance ratios π/π_w; ignored where the KL is below 1e-4 nats.
    ess
        Effective number of draws after importance weighting, (Σr)²/Σr².
    rhat, draws_ess
        R-hat and effective sample size of all given draws before weighting, the worst over the
        unconstrained parameters. NaN for too few draws.
    modes
        Result of the search for modes without draws.
    log_ratios : (chains, S)
        D_s, centred.
    mean_log_ratio
        Mean of D_s in nats, before they are centred: log(Z/Z_w) is this plus ``kl``, where Z and
        Z_w integrate the two unnormalised densities (`decoct.log_evidence`).
    sampling_se
        Standard error of log(Z/Z_w) by the sampling of rows; 0 where D_s is exact.
    log_weights : (chains, S)
        Pareto-smoothed, normalised log importance weights.
    picked : (S,)
        Which draws of each chain were used (thinning).
    n_rows, size
        N and M.
    sampled_rows
        Rows that D_s was estimated from; N where it is exact.
    fingerprint
        A digest of the coreset and the draws.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> draws = coreset.sample(draws=250, sampler=decoct.samplers.Exact())
    >>> certificate = decoct.check(coreset, rows, draws)
    >>> certificate.ok, certificate.grade.value
    (True, 'good')
    """

    kl: float
    kl_se: float
    kl_interval: tuple[float, float]
    forward_kl: float
    forward_kl_se: float
    half_variance: float
    khat: float
    ess: float
    rhat: float
    draws_ess: float
    modes: ModeSearch
    log_ratios: Float[np.ndarray, "chains S"]
    mean_log_ratio: float
    sampling_se: float
    log_weights: Float[np.ndarray, "chains S"]
    picked: Int[np.ndarray, " S"]
    n_rows: int
    size: int
    sampled_rows: int
    fingerprint: str

    @property
    def is_exact(self) -> bool:
        """Whether D_s comes from all rows, and not from a sample of them."""
        return self.sampled_rows == self.n_rows

    @property
    def grade(self) -> Grade:
        """What the draws are good for."""
        by_kl = grade_of(self.kl, self.khat)
        if by_kl is Grade.REFUSED:
            return by_kl
        if self.modes.others:
            return Grade.ONE_MODE
        return Grade.DOUBTFUL if self._doubts else by_kl

    @property
    def ok(self) -> bool:
        """Whether draws of π_w can be used for π: the verdict is "good" or "usable"."""
        return self.grade.ok

    @property
    def verdict(self) -> str:
        """Whether to trust the coreset posterior, and why."""
        reason = SAYS.get(self.grade, "")
        if self.grade is Grade.ONE_MODE:
            reason = self._other_mode
        elif self.grade is Grade.DOUBTFUL and self._doubts:
            reason = " and ".join(self._doubts)
        elif self.log_ratios.size < FEWEST_RATIOS:
            reason = f"fewer than {FEWEST_RATIOS} draws have no tail to judge; take more"
        elif self.grade is Grade.REFUSED and self.kl <= MOST_KL:
            reason = (
                "how far the coreset posterior is from the full one cannot be said from these "
                f"draws (k-hat is not below {USABLE_KHAT}); keep more rows, or check more draws"
            )
        return f"{self.grade.value}: {reason}"

    @property
    def caveat(self) -> str:
        """What the certificate does not check."""
        return f"Regions without draws are not checked; {self.modes.caveat}."

    @property
    def kl_is_known(self) -> bool:
        """Whether the divergences are known, and not only a lower bound of KL(π_w‖π)."""
        return is_known(self.kl, self.khat)

    @property
    def _doubts(self) -> list[str]:
        doubts = []
        if not self.rhat <= MIXED_RHAT:
            unknown = np.isnan(self.rhat)
            found = "unknown" if unknown else f"{self.rhat:.2f}, above {MIXED_RHAT}"
            doubts.append(f"R-hat of the draws is {found}: sample longer chains")
        if not self.draws_ess >= FEWEST_DRAWS:
            count = "an unknown number of" if np.isnan(self.draws_ess) else f"{self.draws_ess:.0f}"
            doubts.append(
                f"the draws are worth {count} independent ones, and not {FEWEST_DRAWS}: take more"
            )
        return doubts

    @property
    def _other_mode(self) -> str:
        mass = sum(other.share for other in self.modes.others)
        names = self.modes.others[0].parameters
        differing = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
        return (
            f"modes without draws have {mass:.0%} of the mass, and the largest differs in "
            f"{differing}; sample from scattered starts, or constrain the model to one mode"
        )

    def correct(self, draws: xr.DataTree, *, resample: bool = True, seed: int = 0) -> xr.DataTree:
        """Return draws corrected towards the full posterior by Pareto-smoothed weights.

        Parameters
        ----------
        draws
            The draws that were checked.
        resample
            True (default): draws resampled with the weights, all equally likely afterwards.
            False: the draws as they were, with ``log_weight`` in ``sample_stats``.
        seed
            Seed of the (systematic) resampling.

        Returns
        -------
        xarray.DataTree
            Groups and variables of ``draws``.

        Raises
        ------
        RequestError
            The verdict is "do not use", so the weights cannot be trusted; or these are other draws.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> rows = {"x": rng.normal(size=(500, 2)), "y": rng.integers(0, 2, 500)}
        >>> coreset = decoct.build(decoct.models.LogisticRegression(prior_scale=1.0), rows, size=5)
        >>> draws = coreset.sample(draws=200, chains=2)
        >>> corrected = decoct.check(coreset, rows, draws).correct(draws)
        >>> corrected["posterior"]["beta"].dims
        ('chain', 'draw', 'coefficient')
        """
        if self.grade is Grade.REFUSED:
            raise RequestError(
                f"The verdict is '{self.grade.value}' ({self._figures}), so nothing is corrected: "
                "build a larger coreset."
            )
        posterior = draws["posterior"]
        chains, n = posterior.sizes["chain"], posterior.sizes["draw"]
        if chains != len(self.log_weights) or n <= self.picked.max(initial=0):
            raise RequestError(
                f"These draws have shape ({chains}, {n}), which are not the ones that were checked."
            )
        thinned = draws.map_over_datasets(
            lambda part: part.isel(draw=self.picked) if "draw" in part.dims else part
        )
        if not resample:
            dims = ("chain", "draw")
            coords = {name: thinned["posterior"][name] for name in dims}
            thinned["sample_stats/log_weight"] = xr.DataArray(self.log_weights, coords, dims)
            return thinned
        order = systematic(np.exp(self.log_weights.ravel()), seed)
        corrected = thinned.map_over_datasets(lambda part: _reorder(part, order))
        corrected["posterior"].attrs[CORRECTED] = "resampled"
        return corrected

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, JSON-ready; None for a divergence that is not known."""
        low, high = self.kl_interval
        return {
            "kl": self.kl,
            "kl_interval": [low, high if self.kl_is_known else None],
            "forward_kl": self.forward_kl if self.kl_is_known else None,
            "khat": self.khat,
            "ess": self.ess,
            "draws": int(self.log_ratios.size),
            "rhat": self.rhat,
            "draws_ess": self.draws_ess,
            "mode_searches": self.modes.searches,
            "other_modes": [other._asdict() for other in self.modes.others],
            "ok": self.ok,
            "verdict": self.verdict,
            "size": self.size,
            "n_rows": self.n_rows,
            "exact": self.is_exact,
            "sampled_rows": self.sampled_rows,
        }

    def __repr__(self) -> str:
        lines = [
            f"{self._figures}, ESS {self.ess:.0f} of {self.log_ratios.size} draws.",
            f"{self.size} of {self.n_rows:,} rows: {self.verdict}.",
            self.caveat,
        ]
        if not self.is_exact:
            lines.append(f"Estimated from {self.sampled_rows:,} rows and second-order sums of all.")
        return "\n".join(lines)

    @property
    def _figures(self) -> str:
        low, high = self.kl_interval
        kl = f"KL(coreset‖full) at least {low:.2g} nats"
        if self.kl_is_known:
            kl = (
                f"KL(coreset‖full) = {self.kl:.2g} nats [{low:.2g}, {high:.2g}], "
                f"KL(full‖coreset) = {self.forward_kl:.2g}"
            )
        return f"{kl}; k-hat {self.khat:.2f}"


def check(
    coreset: Coreset,
    rows: Rows | Any,
    draws: xr.DataTree | np.ndarray | None = None,
    *,
    max_draws: int = 1000,
    exact: bool | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Certificate:
    """Measure how far the coreset posterior is from the full-data posterior.

    On large tables potentials are expanded to second order over all rows, and what is left is
    estimated from a sample of rows. decoct uses the estimate only on large tables, if its error is
    below a tenth of the KL (or 1e-4 nats) and the draws are clearly good. Otherwise it evaluates
    all rows at all draws, in one pass. The draws are judged as well, by R-hat and effective sample
    size; up to 50 parameters, modes that have no draws are searched for.

    Parameters
    ----------
    coreset
        What `decoct.build` or `decoct.load` returned.
    rows
        The table it was built from.
    draws
        Draws from the coreset posterior: what ``coreset.sample()`` returned, or an array (n, d)
        or (chains, n, d) of unconstrained parameters from any sampler. None samples with NUTS.
    max_draws
        Chains are thinned to at most this many draws in all; with all rows each costs N
        potentials.
    exact
        True: evaluate all rows at all draws. False: estimate from a sample of rows where that is
        as good. None (default): estimate for models with a linear predictor, such as logistic and
        Poisson regression, and evaluate all rows otherwise: other likelihoods may not be smooth.
    seed
        Seed for sampling when ``draws`` is None, for the starts of the search for other modes, and
        for the sample of rows.
    progress
        Show progress on standard error; None shows it on a terminal.

    Returns
    -------
    Certificate
        Both divergences, in nats with their errors, k-hat, and a verdict in words.

    Raises
    ------
    CoresetFileError
        The table is not the one the coreset was built from.
    RequestError
        The draws do not fit the model.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(1000, 2))}
    >>> model = decoct.models.GaussianMean(covariance=np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> decoct.check(coreset, rows, coreset.sample(draws=250)).ok
    True
    """
    checked_whole("max_draws", max_draws, 2)
    use_compilation_cache()
    keep_buffers()
    require_coreset(coreset)
    dim = coreset.dim  # refuses a coreset without a density, such as a mixture's
    source = table_of(coreset, rows, progress)
    if draws is None:
        draws = coreset.sample(draws=max(1, max_draws // 4), seed=seed, progress=progress)
    given = unconstrained(draws, dim, coreset.fingerprint)
    picked = _thinning(given.shape[1], max(1, max_draws // given.shape[0]))
    z = given[:, picked]
    flat = z.reshape(-1, dim)
    if len(flat) < 2:
        raise RequestError("A certificate needs at least 2 draws.")
    probe = ModeProbe(coreset, flat, seed)
    with ProgressBar(progress):
        potentials = verify(coreset, source, "checking against all rows")
        estimate = None
        exact = not potentials.is_regression if exact is None else exact
        if not exact and is_cheaper(potentials, len(flat)):
            estimate = _from_sample(coreset, potentials, z, seed)
        if estimate is not None:
            found, log_ratios, sampled_rows, sampling_se = estimate
            others = probe.points
            at_others = potentials.totals(others, finite=0) if len(others) else np.zeros(0)
        else:
            both = np.concatenate([flat, probe.points])
            totals = potentials.totals(both, finite=len(flat))
            totals, at_others = np.split(totals, [len(flat)])
            log_ratios = log_ratios_at(coreset, potentials, z, totals)
            found, sampled_rows, sampling_se = judge(log_ratios), source.n_rows, 0.0
    mixing = convergence(given)
    return Certificate(
        kl=found.kl.reverse,
        kl_se=found.kl.reverse_se,
        kl_interval=(found.kl.reverse_low, found.kl.reverse_high),
        forward_kl=found.kl.forward,
        forward_kl_se=found.kl.forward_se,
        half_variance=found.kl.half_variance,
        khat=found.khat,
        ess=found.ess,
        rhat=mixing["rhat"],
        draws_ess=mixing["ess"],
        modes=probe.weigh_modes(potentials, at_others),
        log_ratios=log_ratios - log_ratios.mean(),
        mean_log_ratio=float(log_ratios.mean()),
        sampling_se=sampling_se,
        log_weights=found.log_weights,
        picked=picked,
        n_rows=coreset.n_rows,
        size=coreset.size,
        sampled_rows=sampled_rows,
        fingerprint=fingerprint_of(coreset, given),
    )


def table_of(coreset: Coreset, rows: Rows | Any, progress: bool | None) -> Rows:
    """Return the raw rows of a table that has as many as the coreset was built from."""
    source = as_rows(rows)
    source = source.raw if isinstance(source, EncodedRows) else source
    with ProgressBar(progress):
        counted_rows(source)
    if source.n_rows != coreset.n_rows:
        raise CoresetFileError(
            f"The coreset was built from {coreset.n_rows} rows and this table has "
            f"{source.n_rows}; give the table it came from."
        )
    return source


def require_same_table(coreset: Coreset, rows: Rows | Any) -> Rows:
    """Return the raw rows of the table a coreset was built from; refuse one with other rows."""
    source = table_of(coreset, rows, None)
    require_same(dict(coreset.rows), source.take(coreset.indices, tuple(coreset.rows)))
    return source


def verify(coreset: Coreset, source: Rows, label: str) -> Potentials:
    """Return potentials whose passes refuse a table with other rows where the kept ones were."""
    known = VerifiedRows(source, coreset.indices, dict(coreset.rows))
    begin(label, source.n_rows)
    return Potentials(coreset.model, encoded(known, coreset.model))


def fingerprint_of(coreset: Coreset, z: Float[np.ndarray, "chains S d"]) -> str:
    """Return a digest of a coreset and of all draws, by which a certificate is known."""
    known = f"{coreset.fingerprint} {z.shape}".encode()
    return hashlib.sha256(known + z.tobytes()).hexdigest()


def log_ratios_at(
    coreset: Coreset,
    potentials: Potentials,
    draws: Float[np.ndarray, "chains S d"],
    totals: Float[np.ndarray, " n"],
) -> Float[np.ndarray, "chains S"]:
    """Return D_s = Σ_n f_n(θ_s) − s(θ_s) − Σ w_n f_n(θ_s), given the first term."""
    flat = draws.reshape(-1, draws.shape[-1])
    if coreset.size:
        kept = coreset.model.encode(coreset.rows, coreset.indices)
        totals = totals - coreset.weights @ potentials.vectors(kept, flat)
    if coreset.site is not None:
        totals = totals - coreset.site.log_density(potentials.to_likelihood(flat))
    return totals.reshape(draws.shape[:2])


def _from_sample(
    coreset: Coreset, potentials: Potentials, draws: Float[np.ndarray, "chains S d"], seed: int
) -> tuple[Judgement, Float[np.ndarray, "chains S"], int, float] | None:
    """Return a judgement from a sample of rows, D_s, the rows, and `Certificate.sampling_se`.

    None where all rows are needed.
    """
    key = jax.random.fold_in(jax.random.key(check_seed(seed)), 1)
    try:
        estimate = estimate_totals(potentials, draws.reshape(-1, draws.shape[-1]), key)
    except PotentialError:
        return None  # all rows, at all draws, say which row is at fault
    log_ratios = log_ratios_at(coreset, potentials, draws, estimate.totals)
    found = estimate.judge(log_ratios)
    if found is None:
        return None
    return found, log_ratios, estimate.rows, estimate.error(log_ratios)


def _thinning(n: int, most: int) -> Int[np.ndarray, " S"]:
    """Return at most ``most`` evenly spaced positions out of n."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)


def systematic(weights: np.ndarray, seed: int) -> np.ndarray:
    """Return positions by systematic resampling: i appears ⌊S w_i⌋ or ⌈S w_i⌉ times, shuffled."""
    rng = np.random.default_rng(seed)
    points = (np.arange(len(weights)) + rng.random()) / len(weights)
    cumulative = np.cumsum(weights / weights.sum())
    chosen = np.minimum(np.searchsorted(cumulative, points), len(weights) - 1)
    return rng.permutation(chosen)


def _reorder(part: xr.Dataset, order: np.ndarray) -> xr.Dataset:
    """Put the draws at the flat positions ``order`` in the places of the old ones."""
    if not {"chain", "draw"} <= set(part.dims):
        return part
    dims = ("chain", "draw")
    shape = tuple(part.sizes[dim] for dim in dims)
    places = np.unravel_index(order.reshape(shape), shape)
    index = {dim: xr.Variable(dims, at) for dim, at in zip(dims, places, strict=True)}
    bare = part.drop_vars(dims, errors="ignore")
    return bare.isel(index).assign_coords({dim: part[dim] for dim in dims})
