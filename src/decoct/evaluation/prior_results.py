"""Values that `decoct.prior_sensitivity` returns, and their table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from decoct.runtime.text import text_table

SENSITIVE = 0.05
"""Sensitivity to power scaling from which ArviZ calls a prior informative."""

UNCERTIFIED = "not certified"
"""Verdict on new draws without rows to check them against."""


class Move(NamedTuple):
    """Effect of another prior on one scalar parameter, on its natural scale.

    Attributes
    ----------
    parameter
        Its name.
    mean_shift, mean_shift_se
        How far the posterior mean moves, in posterior standard deviations under the prior of the
        model, and its Monte Carlo standard error.
    sd_ratio, sd_ratio_se
        The new posterior standard deviation by the old one, and its standard error.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> coreset = decoct.build(decoct.models.GaussianMean(np.eye(2)), rows, size=20)
    >>> draws = coreset.sample(sampler=decoct.samplers.Exact())
    >>> wide = decoct.models.GaussianMean(np.eye(2), prior_covariance=2.0)
    >>> result = decoct.prior_sensitivity(coreset, draws, {"wide": wide}).priors[0]
    >>> result.moves[0].parameter, abs(result.moves[0].mean_shift) < 0.01
    ('mean[x[0]]', True)
    """

    parameter: str
    mean_shift: float
    mean_shift_se: float
    sd_ratio: float
    sd_ratio_se: float


@dataclass(frozen=True)
class PriorResult:
    """The posterior under another prior, compared with that under the model's own.

    Attributes
    ----------
    name
        Name of the prior.
    khat
        Pareto k-hat of the weights that take the given draws to this posterior.
    ess
        Effective draws of what the figures come from.
    kl
        KL(new posterior‖old posterior) in nats; NaN where the draws are new.
    new_draws
        What the certificate says of new draws, or that there is none; empty where the given draws
        could be reweighted: k-hat is below 0.7 and 100 effective draws are left.
    moves
        Effect on each parameter; empty where a certificate refuses the new draws.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> coreset = decoct.build(decoct.models.GaussianMean(np.eye(2)), rows, size=20)
    >>> draws = coreset.sample(sampler=decoct.samplers.Exact())
    >>> wide = decoct.models.GaussianMean(np.eye(2), prior_covariance=2.0)
    >>> result = decoct.prior_sensitivity(coreset, draws, {"wide": wide}).priors[0]
    >>> result.name, result.reweighted, len(result.moves)
    ('wide', True, 2)
    """

    name: str
    khat: float
    ess: float
    kl: float
    new_draws: str
    moves: tuple[Move, ...]

    @property
    def reweighted(self) -> bool:
        """Whether the figures come from the given draws."""
        return not self.new_draws

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, JSON-ready; None for a KL that is not known."""
        return {
            "name": self.name,
            "khat": self.khat,
            "reweighted": self.reweighted,
            "new_draws": self.new_draws,
            "ess": self.ess,
            "kl": self.kl if self.reweighted else None,
            "moves": [one._asdict() for one in self.moves],
        }


@dataclass(frozen=True, eq=False)
class PriorSensitivity:
    """Sensitivity of the posterior to its prior.

    Attributes
    ----------
    priors
        One result for each of the other priors.
    power_scaling
        One line a parameter: the sensitivity to powers of the prior and of the likelihood, and
        ArviZ' diagnosis.
    verdict
        Verdict of the certificate on the draws; empty without one, when the figures are those of
        the coreset posterior.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> draws = coreset.sample(sampler=decoct.samplers.Exact())
    >>> wide = decoct.models.GaussianMean(np.eye(2), prior_covariance=2.0)
    >>> decoct.prior_sensitivity(coreset, draws, {"wide": wide}).to_frame()["prior"].tolist()
    ['wide', 'wide']
    """

    priors: tuple[PriorResult, ...]
    power_scaling: pd.DataFrame
    verdict: str

    def to_frame(self) -> pd.DataFrame:
        """Return one line for each prior and parameter."""
        lines = [
            {"prior": one.name, **move._asdict(), "reweighted": one.reweighted}
            for one in self.priors
            for move in one.moves
        ]
        return pd.DataFrame(lines, columns=["prior", *Move._fields, "reweighted"])

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, JSON-ready."""
        return {
            "verdict": self.verdict,
            "priors": [one.to_dict() for one in self.priors],
            "power_scaling": self.power_scaling.to_dict(orient="index"),
        }

    def __repr__(self) -> str:
        of = f"by the certificate {self.verdict}" if self.verdict else "of the coreset, uncertified"
        heads = ("prior", "k-hat", "ESS", "KL, nats", "largest shift, sd", "sd ratio", "")
        lines = [heads, *map(_cells, self.priors)] if self.priors else []
        table = [line.rstrip() for line in text_table(lines, "<" * len(heads)).splitlines()]
        by_prior = self.power_scaling["prior"].to_numpy()
        most = self.power_scaling.index[by_prior.argmax()]
        scaling = (
            f"Power scaling: the prior moves {most} most, {by_prior.max():.2g}; "
            f"{(by_prior >= SENSITIVE).sum()} of {len(by_prior)} parameters are at {SENSITIVE} or "
            "more."
        )
        return "\n".join([f"Posteriors {of}.", *table, scaling])


def _cells(one: PriorResult) -> tuple[str, ...]:
    how = "reweighted" if one.reweighted else f"new draws, {one.new_draws}"
    if not one.moves:
        return one.name, f"{one.khat:.2f}", "–", "–", "–", "–", how
    kl = f"{one.kl:.2g}" if one.reweighted else "–"
    shift = max(one.moves, key=lambda move: abs(move.mean_shift))
    ratio = max(one.moves, key=lambda move: abs(np.log(move.sd_ratio)))
    moved = f"{shift.mean_shift:+.2g} ± {shift.mean_shift_se:.1g} ({shift.parameter})"
    spread = f"{ratio.sd_ratio:.2f} ± {ratio.sd_ratio_se:.1g} ({ratio.parameter})"
    return one.name, f"{one.khat:.2f}", f"{one.ess:.0f}", kl, moved, spread, how
