"""The Dirichlet process Gaussian mixture as a scikit-learn estimator that takes weights.

Fitted by weighted coordinate ascent on the exact evidence bound (`decoct.mixture.cavi`; Borsos,
Bachem & Krause 2017, Alg. 2). A fitted mixture is a posterior: ``score_samples`` is the log of the
posterior predictive density (their §4),

    p(x | X) ≈ Σ_t E[π_t] St(x; m_t, (ν_t + 1 − D)β_t/(1 + β_t) W_t, ν_t + 1 − D).

Names and defaults are those of scikit-learn's ``BayesianGaussianMixture``, with
``covariance_prior`` = W₀⁻¹ and ``covariances_`` = W_t⁻¹/ν_t. Three things differ. The last stick is
v_T = 1, so that the weights sum to 1 without division. ``lower_bound_`` has all its constants.
``reg_covar`` is a part of the default prior; added to every component's covariance, as there, it
would make the bound fall.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from copy import copy
from time import perf_counter
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from decoct.errors import RequestError
from decoct.mixture import cavi
from decoct.mixture.cavi import Fit, Mixture, Priors
from decoct.mixture.e_step import make_table
from decoct.mixture.normal_wishart import NormalWishart
from decoct.mixture.posterior import compute_log_predictive, compute_responsibilities
from decoct.mixture.stick_breaking import FiniteDirichlet, StickBreaking, WeightPrior
from decoct.runtime.checks import checked_whole
from decoct.runtime.resources import use_compilation_cache

try:
    from sklearn.base import BaseEstimator, DensityMixin
    from sklearn.exceptions import ConvergenceWarning, DataDimensionalityWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "DPGaussianMixture is a scikit-learn estimator and needs scikit-learn 1.6 or newer; "
        "install it with: pip install 'decoct[sklearn]'."
    ) from error

from decoct.mixture import estimator_input
from decoct.mixture.coreset_fit import FittedOnCoresets
from decoct.mixture.estimator_input import Moments
from decoct.mixture.initialization import (
    compute_start_statistics,
    find_representatives,
    merge_equal_rows,
)


class DPGaussianMixture(FittedOnCoresets, DensityMixin, BaseEstimator):
    """Dirichlet process mixture of Gaussians with full covariances, truncated at T components.

    Parameters
    ----------
    n_components : int, default=1
        T, the truncation level: the most components.
    tol : float, default=1e-3
        Stop when an iteration raises ``lower_bound_`` by less than this, in nats.
    reg_covar : float, default=1e-6
        Added to the diagonal of the default ``covariance_prior``, so that it can be inverted when
        columns are collinear or rows are few. With 0 such data raise an error.
    max_iter : int, default=100
        Most iterations.
    n_init : int, default=1
        Starts; the fit is the one with the highest bound.
    init_params : {'kmeans', 'k-means++', 'random', 'random_from_data'}, default='kmeans'
        Where to start: clusters of k-means, seeds of k-means++, responsibilities at random, or rows
        at random.
    weight_concentration_prior_type : {'dirichlet_process', 'dirichlet_distribution'}, \
            default='dirichlet_process'
        Stick-breaking, or a finite mixture with a symmetric Dirichlet.
    weight_concentration_prior : float, default=None
        α₀ of the sticks Beta(1, α₀), or of every component of the Dirichlet; 1/T if None.
    mean_precision_prior : float, default=None
        β₀; 1 if None.
    mean_prior : array-like of shape (n_features,), default=None
        m₀; the weighted mean of X if None.
    degrees_of_freedom_prior : float, default=None
        ν₀ > D − 1; D if None.
    covariance_prior : float or array-like of shape (n_features, n_features), default=None
        W₀⁻¹, or a multiple of the identity; the weighted covariance of X, plus ``reg_covar`` on
        the diagonal, if None. With D distinct rows or fewer give one: the covariance of X has
        directions in which ``reg_covar`` is the whole prior, and `fit` warns.
    random_state : int, RandomState instance or None, default=None
        Seed of the starts and of `sample`.
    warm_start : bool, default=False
        Start the next `fit` from the last one's posterior; ``n_init`` is then ignored.
    verbose : int, default=0
        1 prints starts and iterations, 2 seconds too.
    verbose_interval : int, default=10
        Iterations from one line to the next.
    coreset_size : int, default=None
        M: fit on the lightweight coreset of M weighted draws (their Alg. 1) in place of all rows,
        at about M/N of the cost. Default priors are still those of all rows. None, or no more
        distinct rows than M: all rows.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        E π_t.
    means_ : ndarray of shape (n_components, n_features)
        m_t.
    covariances_ : ndarray of shape (n_components, n_features, n_features)
        W_t⁻¹/ν_t, the inverse of E Λ_t.
    precisions_ : ndarray of shape (n_components, n_features, n_features)
        E Λ_t = ν_t W_t.
    precisions_cholesky_ : ndarray of shape (n_components, n_features, n_features)
        Upper triangular C_t with C_t C_tᵀ = E Λ_t.
    mean_precision_, degrees_of_freedom_ : ndarray of shape (n_components,)
        β_t and ν_t.
    weight_concentration_ : tuple of two ndarrays of shape (n_components,), or one such array
        (a, b) of the sticks' Beta(a_t, b_t), the last with b = 0 (v_T = 1); or the Dirichlet's.
    lower_bound_ : float
        The evidence bound in nats. If ``max_iter`` is 0, −inf, or with ``warm_start`` the one of
        the last fit.
    lower_bounds_ : list of float
        The bound after every iteration. It never falls, up to rounding. If float64 cannot
        represent a covariance, the fit stops and warns.
    n_iter_ : int
        Iterations of the best start.
    converged_ : bool
        Whether they ended by ``tol``.
    coreset_ : Coreset or None
        The weighted rows of the fit, where ``coreset_size`` or `decoct.mixture.build` asked
        for some. Its ``model`` is the fit as it was, which later fits leave alone.
    weight_concentration_prior_, mean_precision_prior_, degrees_of_freedom_prior_ : float
    mean_prior_ : ndarray of shape (n_features,)
    covariance_prior_ : ndarray of shape (n_features, n_features)
        The priors used.
    n_features_in_ : int
        D.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the columns, where X has names.

    Notes
    -----
    A row of weight w counts w times: weights are not divided by their sum, for the posterior
    depends on it, and the fit is that of the repeated rows. The order of the rows does not matter.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 2)) + 8.0 * rng.integers(2, size=(400, 1))
    >>> mixture = DPGaussianMixture(n_components=10, random_state=0, max_iter=500).fit(X)
    >>> int((mixture.weights_ > 0.05).sum())
    2
    """

    _parameter_constraints: ClassVar[dict] = estimator_input.PARAMETER_CONSTRAINTS

    def __init__(
        self,
        *,
        n_components=1,
        tol=1e-3,
        reg_covar=1e-6,
        max_iter=100,
        n_init=1,
        init_params="kmeans",
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=None,
        mean_precision_prior=None,
        mean_prior=None,
        degrees_of_freedom_prior=None,
        covariance_prior=None,
        random_state=None,
        warm_start=False,
        verbose=0,
        verbose_interval=10,
        coreset_size=None,
    ):
        self.n_components = n_components
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weight_concentration_prior_type = weight_concentration_prior_type
        self.weight_concentration_prior = weight_concentration_prior
        self.mean_precision_prior = mean_precision_prior
        self.mean_prior = mean_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.covariance_prior = covariance_prior
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.verbose_interval = verbose_interval
        self.coreset_size = coreset_size

    def fit(self, X, y=None, sample_weight=None):
        """Maximise the evidence bound on weighted rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights ≥ 0: 0 is a row left out, 2 a row counted twice. All ones if None.

        Returns
        -------
        DPGaussianMixture
            Itself.

        Raises
        ------
        ValueError
            A parameter, X or a weight cannot be used, or a default prior cannot be formed from
            them, or this is the ``model`` of a coreset; the message says which and what to do.

        Warns
        -----
        ConvergenceWarning
            The iterations ended before the bound stood still.
        DataDimensionalityWarning
            X has no more distinct rows than columns, and ``covariance_prior`` is None.

        Examples
        --------
        >>> from decoct.mixture import DPGaussianMixture
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
        >>> DPGaussianMixture(random_state=0).fit(X, sample_weight=[1, 1, 1, 2, 2, 2]).means_.shape
        (1, 1)
        """
        estimator_input.check_parameters(self)
        estimator_input.check_unbound(self)
        with estimator_input.restore_on_failure(self):
            X = self._validate(X, ensure_min_samples=2)
            weights = estimator_input.validate_weights(sample_weight, X)
            where, gamma = find_representatives(X, weights)
            priors = self._set_priors(X.shape[1], lambda: Moments.of(X[where], gamma))
            coreset, x = None, X[where]
            if self.coreset_size is not None:
                coreset = self._make_own_coreset(X, where, gamma)
                x, gamma = merge_equal_rows(X[coreset.indices], coreset.weights)
            self._fit_rows(x, gamma, priors)
            # its model is a copy, which shares the arrays: the next fit must not change it
            self.coreset_ = None if coreset is None else copy(self)._become_model_of(coreset)
        return self

    def fit_predict(self, X, y=None, sample_weight=None):
        """Fit, and return `predict` of the same rows; parameters are those of `fit`.

        Examples
        --------
        >>> from decoct.mixture import DPGaussianMixture
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
        >>> DPGaussianMixture(n_components=2, random_state=0).fit_predict(X).shape
        (6,)
        """
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def predict(self, X):
        """Return the most probable component of every row of X, shape (n_samples,).

        Examples
        --------
        >>> from decoct.mixture import DPGaussianMixture
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
        >>> mixture = DPGaussianMixture(n_components=2, random_state=0).fit(X)
        >>> mixture.predict(X).shape
        (6,)
        """
        return self.predict_proba(X).argmax(axis=1)

    def predict_proba(self, X):
        """Return q(z = t) of every row, its responsibilities, shape (n_samples, n_components).

        Examples
        --------
        >>> from decoct.mixture import DPGaussianMixture
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
        >>> mixture = DPGaussianMixture(n_components=2, random_state=0).fit(X)
        >>> mixture.predict_proba(X).sum(axis=1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
        """
        q = self._get_posterior(), self._make_weight_prior()
        return compute_responsibilities(*q, self._validate(X, reset=False))

    def score_samples(self, X):
        """Return the log posterior predictive density of every row of X (N7), in nats.

        Examples
        --------
        >>> from decoct.mixture import DPGaussianMixture
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
        >>> mixture = DPGaussianMixture(n_components=2, random_state=0).fit(X)
        >>> mixture.score_samples(X).shape
        (6,)
        """
        q = self._get_posterior(), self._make_weight_prior()
        return compute_log_predictive(*q, self._validate(X, reset=False))

    def score(self, X, y=None, sample_weight=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the mean of `score_samples`, weighted by ``sample_weight`` where it is given.

        Examples
        --------
        >>> from decoct.mixture import DPGaussianMixture
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
        >>> mixture = DPGaussianMixture(n_components=2, random_state=0).fit(X)
        >>> mixture.score(X) > mixture.score([[50.0]])
        True
        """
        scores = self.score_samples(X)
        if sample_weight is None:
            return float(scores.mean())
        return float(np.average(scores, weights=estimator_input.validate_weights(sample_weight, X)))

    def sample(self, n_samples=1):
        """Draw rows from the posterior predictive, whose log density is `score_samples`.

        Parameters
        ----------
        n_samples : int, default=1
            Rows wanted.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Rows, component by component.
        y : ndarray of shape (n_samples,)
            The component of each.

        Examples
        --------
        >>> from decoct.mixture import DPGaussianMixture
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
        >>> mixture = DPGaussianMixture(n_components=2, random_state=0).fit(X)
        >>> rows, components = mixture.sample(5)
        >>> rows.shape, components.shape
        ((5, 1), (5,))
        """
        factors = self._get_posterior().components.chol
        checked_whole("n_samples", n_samples, 1)
        rng = check_random_state(self.random_state)
        y = np.repeat(np.arange(len(self.weights_)), rng.multinomial(n_samples, self.weights_))
        D = self.means_.shape[1]
        beta = self.mean_precision_[y]
        dof = self.degrees_of_freedom_[y] + 1.0 - D
        scale = np.sqrt((1.0 + beta) / beta / rng.chisquare(dof))
        normal = np.einsum("nij,nj->ni", factors[y], rng.standard_normal((len(y), D)))
        return self.means_[y] + scale[:, None] * normal, y

    def _validate(self, X, **how) -> Float[np.ndarray, "N D"]:
        found = validate_data(self, X, dtype=[np.float64, np.float32], **how)
        rows = np.asarray(found, dtype=np.float64)
        estimator_input.check_values(rows)
        return rows

    def _make_weight_prior(self) -> WeightPrior:
        """Return the prior of the fit, whatever the parameters are now."""
        sticks = isinstance(self.weight_concentration_, tuple)
        kind = StickBreaking if sticks else FiniteDirichlet
        return kind(float(self.weight_concentration_prior_))

    def _get_posterior(self) -> Mixture:
        check_is_fitted(self)
        return self._posterior

    def _set_priors(self, D: int, moments_of: Callable[[], Moments]) -> Priors:
        """Set the priors' attributes, and return them; rows are only used for defaults."""
        alpha, beta = self.weight_concentration_prior, self.mean_precision_prior
        nu = self.degrees_of_freedom_prior
        self.weight_concentration_prior_ = 1.0 / self.n_components if alpha is None else alpha
        self.mean_precision_prior_ = 1.0 if beta is None else beta
        self.degrees_of_freedom_prior_ = D if nu is None else nu
        if not self.degrees_of_freedom_prior_ > D - 1.0:
            raise RequestError(
                "The parameter 'degrees_of_freedom_prior' should be greater than "
                f"{D - 1}, but got {self.degrees_of_freedom_prior_:.3f}."
            )
        moments = functools.cache(moments_of)
        self.mean_prior_ = estimator_input.make_mean_prior(self.mean_prior, D, moments)
        self.covariance_prior_, chol = estimator_input.make_covariance_prior(
            self.covariance_prior, self.reg_covar, D, moments
        )
        if self.covariance_prior is None and (rows := moments().rows) <= D:
            # no error: scikit-learn's check of weights fits 15 rows of 30 columns
            message = (
                f"X has {rows} distinct rows and {D} columns: its covariance, the default "
                f"covariance_prior, has rank {rows - 1} at most, and reg_covar "
                f"({self.reg_covar:.3g}) is all that the prior has in the other directions. Give "
                "covariance_prior, or set reg_covar to the variance expected there."
            )
            warnings.warn(message, DataDimensionalityWarning, stacklevel=3)
        kind = estimator_input.WEIGHT_PRIORS[self.weight_concentration_prior_type]
        components = NormalWishart(
            self.mean_prior_,
            np.asarray(self.mean_precision_prior_, dtype=np.float64),
            chol,
            np.asarray(self.degrees_of_freedom_prior_, dtype=np.float64),
        )
        return Priors(kind(float(self.weight_concentration_prior_)), components)

    def _fit_rows(
        self, x: Float[np.ndarray, "n D"], gamma: Float[np.ndarray, " n"], priors: Priors
    ) -> None:
        """Fit distinct rows that count γ times: the best of the starts."""
        use_compilation_cache()
        again = self.warm_start and hasattr(self, "converged_")
        if again:
            estimator_input.check_warm(self, x.shape[1])
        rows, fits, bound = make_table(x, gamma), [], -np.inf
        rng = check_random_state(self.random_state)
        for number in range(1 if again else self.n_init):
            began = perf_counter()
            if self.verbose:
                print(f"Initialization {number}")
            if again:
                start, bound = self._get_posterior(), self.lower_bound_
            else:
                how, T = self.init_params, self.n_components
                statistics = compute_start_statistics(how, x, gamma, T, rng)
                start = cavi.start_mixture(priors, statistics)
            fit = cavi.ascend(
                rows,
                priors,
                start,
                tolerance=self.tol,
                max_iterations=self.max_iter,
                bound=bound,
                on_iteration=self._make_iteration_printer() if self.verbose else None,
            )
            if self.verbose:
                self._print_end(fit, perf_counter() - began)
            fits.append(fit)
        best = max(fits, key=lambda fit: fit.bounds[-1] if fit.bounds else -np.inf)
        self._set_fit(best, bound)
        trouble = None
        if best.fall:
            trouble = (
                f"The evidence bound would have fallen by {best.fall:.3g} nats in iteration "
                f"{len(best.bounds) + 1}, so that the fit ends before it: some component's "
                "covariance has more digits than float64. Scale the input data, or increase "
                "covariance_prior."
            )
        elif not best.converged and self.max_iter > 0:
            trouble = (
                "Best performing initialization did not converge. Try different init parameters, "
                "or increase max_iter, tol, or check for degenerate data."
            )
        if trouble:
            warnings.warn(trouble, ConvergenceWarning, stacklevel=3)

    def _make_iteration_printer(self) -> Callable[[int, float, float], None]:
        """Return a function that prints iterations as scikit-learn's mixtures do."""
        last = perf_counter()

        def print_iteration(number: int, bound: float, rise: float) -> None:
            nonlocal last
            if number % self.verbose_interval == 0:
                now = perf_counter()
                details = f"\t time lapse {now - last:.5f}s\t ll change {rise:.5f}"
                print(f"  Iteration {number}" + (details if self.verbose > 1 else ""))
                last = now

        return print_iteration

    def _print_end(self, fit: Fit, seconds: float) -> None:
        """Print how a start ended, as scikit-learn's mixtures do."""
        outcome = "converged" if fit.converged else "did not converge"
        bound = fit.bounds[-1] if fit.bounds else -np.inf
        details = f" time lapse {seconds:.5f}s\t lower bound {bound:.5f}."
        print(f"Initialization {outcome}." + (details if self.verbose > 1 else ""))

    def _set_fit(self, fit: Fit, bound: float = -np.inf) -> None:
        """Set what the user reads; ``bound`` is the one at the start."""
        self._posterior = fit.mixture
        shares, components = fit.mixture
        self.weight_concentration_ = (shares[0], shares[1]) if len(shares) == 2 else shares[0]
        self.weights_ = self._make_weight_prior().mean(shares)
        self.means_ = components.mean
        self.mean_precision_ = components.mean_precision
        self.degrees_of_freedom_ = components.dof
        chol, dof = components.chol, components.dof[:, None, None]
        self.covariances_ = chol @ chol.transpose(0, 2, 1) / dof
        inverse = np.linalg.solve(chol, np.broadcast_to(np.eye(chol.shape[1]), chol.shape))
        self.precisions_cholesky_ = (np.sqrt(dof) * np.tril(inverse)).transpose(0, 2, 1)
        self.precisions_ = self.precisions_cholesky_ @ self.precisions_cholesky_.transpose(0, 2, 1)
        self.converged_ = fit.converged
        self.n_iter_ = len(fit.bounds)
        self.lower_bounds_ = fit.bounds
        self.lower_bound_ = fit.bounds[-1] if fit.bounds else bound
