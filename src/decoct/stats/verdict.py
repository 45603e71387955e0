"""Judgement of π_w from log ratios at its draws: divergences, importance weights, a verdict.

With D_s = ℓ(θ_s) − ℓ_w(θ_s), θ_s ~ π_w, the weights r_s ∝ e^{D_s}, Pareto-smoothed, move the draws
from π_w to π, and are worth

    ESS = 1 / Σ r_s²,   Σ r_s = 1.

Where k-hat is 0.7 or more, draws too rare to appear dominate E e^D. The estimate of KL(π_w‖π) is
then biased low, since E[log mean e^D] ≤ log E e^D (Jensen's inequality). The lower end of its 95 %
interval is a safer lower bound, and there is no upper end. No estimate of KL(π‖π_w) is given: it
would be an entropy of weights, which cannot exceed the log of the number of draws however large the
truth.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from decoct.stats.chains import GOOD_KHAT, USABLE_KHAT, smoothed_log_weights
from decoct.stats.divergences import EstimatedKL, kl_from_log_ratios

SMALL_KL = 1e-4
"""KL in nats below which k-hat is ignored: no mean is off by more than 0.014 sd."""

GOOD_KL, USABLE_KL, MOST_KL = 0.05, 0.5, 1.0
"""KL in nats below which draws are good, usable once corrected, and doubtful."""


class Grade(enum.Enum):
    """What the draws of a coreset posterior are good for; the first word of a verdict.

    Examples
    --------
    >>> from decoct.stats.verdict import Grade
    >>> [grade.value for grade in Grade if grade.ok]
    ['good', 'usable']
    """

    GOOD = "good"
    USABLE = "usable"
    DOUBTFUL = "doubtful"
    ONE_MODE = "one mode of several"
    REFUSED = "do not use"

    @property
    def ok(self) -> bool:
        """Whether the draws can be used, corrected or as they are."""
        return self in (Grade.GOOD, Grade.USABLE)


class Judgement(NamedTuple):
    """Result of judging log ratios."""

    kl: EstimatedKL  # without an upper end, the forward one NaN, where k-hat refuses it
    khat: float  # Pareto k-hat of the ratios
    ess: float  # draws that the weights leave
    log_weights: Float[np.ndarray, "chains S"]  # normalised and Pareto-smoothed


def is_known(kl: float, khat: float) -> bool:
    """Return whether an estimate of KL(π_w‖π) stands: k-hat is below 0.7, or KL below 1e-4."""
    return khat < USABLE_KHAT or kl < SMALL_KL


def grade_of(kl: float, khat: float) -> Grade:
    """Return the grade by KL(π_w‖π) and k-hat."""
    if not (kl <= MOST_KL and is_known(kl, khat)):
        return Grade.REFUSED
    if kl >= USABLE_KL:
        return Grade.DOUBTFUL
    if kl < GOOD_KL and (khat < GOOD_KHAT or kl < SMALL_KL):
        return Grade.GOOD
    return Grade.USABLE


def judge(log_ratios: Float[np.ndarray, "chains S"]) -> Judgement:
    """Judge π_w by the log ratios D_s at draws of it, one row a Markov chain."""
    kl = kl_from_log_ratios(log_ratios)
    log_weights, khat = smoothed_log_weights(log_ratios.ravel())
    if not is_known(kl.reverse, khat):
        kl = kl._replace(reverse_high=np.inf, forward=np.nan, forward_se=np.nan)
    ess = float(1.0 / np.exp(2.0 * log_weights).sum())
    return Judgement(kl, khat, ess, log_weights.reshape(log_ratios.shape))
