"""Checks of the input of `DPGaussianMixture`, with scikit-learn's messages where it has some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils._param_validation import Interval, InvalidParameterError
from sklearn.utils.validation import _check_sample_weight, check_array

from decoct.errors import BadValueError, RequestError, RowsError
from decoct.mixture.stick_breaking import FiniteDirichlet, StickBreaking
from decoct.models.base import row_number

WEIGHT_PRIORS = {
    "dirichlet_process": StickBreaking,
    "dirichlet_distribution": FiniteDirichlet,
}

LARGEST_SEED = 2**32 - 1

LARGEST_VALUE = 1e150
"""Largest number in X whose square float64 can hold, with room for sums."""

FEWEST_ROWS = 2.0 * (1.0 - 1e-12)
"""Σγ below which there is no covariance to speak of, rounding left out."""


class NumberInterval(Interval):
    """An interval of numbers that holds no bool: ``True`` is not 1."""

    def is_satisfied_by(self, val: Any) -> bool:
        return not isinstance(val, bool) and super().is_satisfied_by(val)


PARAMETER_CONSTRAINTS = {
    **BayesianGaussianMixture._parameter_constraints,
    "coreset_size": [None, NumberInterval(Integral, 1, None, closed="left")],
}
"""The values of each parameter of `DPGaussianMixture`; what meets one constraint is taken."""
del PARAMETER_CONSTRAINTS["covariance_type"]


def check_parameters(estimator: BaseEstimator) -> None:
    """Refuse parameters out of range, in scikit-learn's words."""
    try:
        estimator._validate_params()
    except InvalidParameterError as error:
        raise RequestError(str(error)) from None


@contextmanager
def restore_on_failure(estimator: BaseEstimator) -> Iterator[None]:
    """Leave an estimator as it was if the block fails, Ctrl-C included."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def check_values(x: Float[np.ndarray, "n D"], numbers: int | Int[np.ndarray, " n"] = 0) -> None:
    """Refuse values whose squares overflow; ``numbers`` are the rows', or the first one's."""
    if max(x.max(), -x.min()) > LARGEST_VALUE:
        row, column = np.argwhere(np.abs(x) > LARGEST_VALUE)[0]
        raise BadValueError(
            f"X has {x[row, column]:.6g}",
            row_number(numbers, row),
            f", column {column}, whose square overflows; rescale the column, for example in other "
            "units.",
        )


def check_unbound(estimator: Any) -> None:
    """Refuse to fit what is the model of a coreset, whose rows would then have another's fit."""
    coreset = getattr(estimator, "coreset_", None)
    if coreset is not None and coreset.model is estimator:
        raise RequestError(
            f"This {type(estimator).__name__} is the model of a coreset, fitted to its rows, which "
            "another fit would change; fit a copy: copy.copy(model).fit(X). With warm_start=True "
            "it starts from this fit."
        )


def check_warm(estimator: Any, D: int) -> None:
    """Refuse to start from a posterior of another shape."""
    sticks = isinstance(estimator.weight_concentration_, tuple)
    last = (*estimator.means_.shape, "dirichlet_process" if sticks else "dirichlet_distribution")
    now = (estimator.n_components, D, estimator.weight_concentration_prior_type)
    if now != last:
        raise RequestError(
            "warm_start starts from the last fit, whose n_components, features and "
            f"weight_concentration_prior_type were {last}, not {now}; set warm_start=False."
        )


def validate_weights(sample_weight: Any, X: Any) -> Float[np.ndarray, " N"]:
    """Return γ ≥ 0, some positive, one for each row; all ones if not given."""
    gamma = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not gamma.any():
        raise RowsError("Sample weights must contain at least one non-zero number.")
    return gamma


class Moments(NamedTuple):
    """What the default priors need of the rows."""

    rows: int
    total: float  # Σγ
    mean: Float[np.ndarray, " D"]  # x̄
    scatter: Float[np.ndarray, "D D"]  # Σγ(x − x̄)(x − x̄)ᵀ
    low: Float[np.ndarray, " D"]  # smallest values
    high: Float[np.ndarray, " D"]

    @classmethod
    def of(cls, x: Float[np.ndarray, "n D"], gamma: Float[np.ndarray, " n"]) -> Moments:
        """Return the moments of rows that count γ times."""
        total = gamma.sum()
        mean = (gamma / total) @ x
        away = x - mean
        scatter = (gamma[:, None] * away).T @ away
        return cls(len(x), float(total), mean, scatter, x.min(axis=0), x.max(axis=0))

    def joined(self, other: Moments) -> Moments:
        """Return the moments of both tables' rows."""
        total = self.total + other.total
        gap = other.mean - self.mean
        between = self.total * other.total / total * np.outer(gap, gap)
        return Moments(
            self.rows + other.rows,
            total,
            self.mean + other.total / total * gap,
            self.scatter + other.scatter + between,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )


def count_moment_passes(estimator: Any) -> int:
    """Return the passes over all rows that default priors cost."""
    return int(estimator.mean_prior is None or estimator.covariance_prior is None)


def make_mean_prior(given: Any, D: int, moments: Callable[[], Moments]) -> Float[np.ndarray, " D"]:
    """Return m₀; ``moments`` are asked for where none is given."""
    return moments().mean if given is None else _to_prior_array(given, (D,), "means")


def make_covariance_prior(
    given: Any, added: float, D: int, moments: Callable[[], Moments]
) -> tuple[Float[np.ndarray, "D D"], Float[np.ndarray, "D D"]]:
    """Return W₀⁻¹ and its Cholesky factor; ``moments`` are asked for where none is given."""
    if given is None:
        prior = _compute_covariance(moments(), added)
    elif isinstance(given, Real):
        prior = float(given) * np.eye(D)
    else:
        prior = _to_prior_array(given, (D, D), "full covariance_prior")
        # whatever the columns' units
        scale = np.sqrt(np.where(np.diag(prior) > 0.0, np.diag(prior), 1.0))
        correlation = prior / scale[:, None] / scale
        definite = (np.linalg.eigvalsh(correlation) > 0.0).all()
        if not (definite and np.allclose(correlation, correlation.T)):
            raise RequestError("'full covariance_prior' should be symmetric, positive-definite")
    return prior, np.linalg.cholesky(prior)


def _to_prior_array(given: Any, shape: tuple[int, ...], name: str) -> Float[np.ndarray, "..."]:
    """Return a prior's array as float64 of this shape."""
    value = np.asarray(check_array(given, ensure_2d=False), dtype=np.float64)
    if value.shape != shape:
        raise RequestError(
            f"The parameter '{name}' should have the shape of {shape}, but got {value.shape}"
        )
    return value


def _compute_covariance(moments: Moments, added: float) -> Float[np.ndarray, "D D"]:
    """Return the covariance of the rows, or say why it is not a prior."""
    remedy = "give covariance_prior, a positive number or a positive-definite matrix."
    rows, total = moments.rows, moments.total
    if (moments.low == moments.high).all():
        raise RowsError(f"X has one distinct row, whose covariance is zero; {remedy}")
    if total < FEWEST_ROWS:
        raise RowsError(
            f"sample_weight sums to {total:.6g}; weights count rows and must sum to at least "
            f"2: scale them up, or {remedy}"
        )
    covariance = moments.scatter / (total - 1.0)
    D = len(covariance)
    covariance[np.diag_indices(D)] += added
    spread = np.sqrt(np.diag(covariance))
    largest = np.maximum(np.abs(moments.low), np.abs(moments.high))
    flat = spread <= 8.0 * np.finfo(float).eps * largest
    if flat.any():
        raise RowsError(
            f"Column {int(np.argmax(flat))} of X is constant, so the covariance of X is singular; "
            f"drop the column, set reg_covar, or {remedy}"
        )
    correlation = covariance / np.outer(spread, spread)
    if np.linalg.eigvalsh(correlation)[0] <= D * np.finfo(float).eps:
        rank = np.linalg.matrix_rank(correlation, hermitian=True)
        raise RowsError(
            f"The covariance of X is singular: {rows} distinct rows span {rank} of {D} columns; "
            f"drop columns that others determine, increase reg_covar, or {remedy}"
        )
    return covariance
