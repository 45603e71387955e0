"""The seven data sets of Campbell & Broderick (2019, Section 7.2), ready to be compressed.

Logistic regression (Eq. 7.1): synthetic, Phishing with all 68 features, ChemReact. Poisson
regression with the softplus link (Eq. 7.2): synthetic, BikeTrips, AirportDelays. Directional
clustering (Eq. 7.4, 7.5): six von Mises-Fisher clusters, one at either end of each axis.

Covariates are centred and Cholesky-whitened by the statistics of the training rows, as Metropolis
with an isotropic proposal needs them; Phishing's, which are 0 or 1/√30, are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from decoct.mixture import Conditionals, Gibbs, VonMisesFisherMixture, sample_vmf, vmf_em
from decoct.models import LogisticRegression, PoissonRegression
from decoct.models.base import AbstractModel
from decoct.samplers import Metropolis
from decoct.theory.predictive import best_log_likelihood
from experiments import common

SPLIT_SEED = 20190101
"""Seed of the sets that are drawn or split here: the rows are the same in all experiments."""

PHISHING_HELD_OUT = 1105
CLUSTER_ROWS, CLUSTER_HELD_OUT = 10_000, 1000
CONCENTRATION = 50.0
POLES = np.concatenate([np.eye(3), -np.eye(3)])

LOGISTIC, POISSON, DIRECTIONAL = "logistic", "poisson", "directional"

FAMILIES = {
    LOGISTIC: ("synth_lr", "phishing", "chemreact"),
    POISSON: ("synth_poiss", "biketrips", "airportdelays"),
    DIRECTIONAL: ("synth_vmf",),
}
"""The sets of every family."""

TITLES = {
    LOGISTIC: "Logistic regression",
    POISSON: "Poisson regression",
    DIRECTIONAL: "Directional clustering",
    "synth_lr": "Synthetic (logistic)",
    "phishing": "Phishing",
    "chemreact": "ChemReact",
    "synth_poiss": "Synthetic (Poisson)",
    "biketrips": "BikeTrips",
    "airportdelays": "AirportDelays",
    "synth_vmf": "Synthetic (directional)",
}
"""What families and sets are called in pictures."""

Table = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Rows to compress, rows to predict, and the model of both.

    Attributes
    ----------
    name
        For tables; `TITLES` has those for pictures.
    family
        `LOGISTIC`, `POISSON` or `DIRECTIONAL`.
    model
        With the paper's prior.
    train, test
        Columns of the rows; the fit does not see the test rows.
    """

    name: str
    family: str
    model: AbstractModel
    train: Table
    test: Table

    @property
    def n_rows(self) -> int:
        return len(self.train["x"])

    @property
    def weighting(self) -> str | Conditionals:
        """The paper's π̂."""
        return Conditionals() if self.family == DIRECTIONAL else "laplace"

    def sampler(self, steps: int) -> Metropolis | Gibbs:
        """Return the paper's sampler: half the steps are warm-up, every fifth is kept."""
        kind = Gibbs if self.family == DIRECTIONAL else Metropolis
        return kind(warmup=steps // 2, steps=steps - steps // 2, thin=5)

    def best(self) -> float:
        """Return the largest log-likelihood per test row that any parameter has, in nats."""
        if self.family != DIRECTIONAL:
            return best_log_likelihood(self.model, self.test)
        # labels can be swapped, so there are many maxima and Newton's method finds none
        x = self.test["x"]
        fit = vmf_em(x, n_components=len(POLES), concentration=CONCENTRATION, restarts=20)
        return fit.log_likelihood / len(x)

    def comparable(self, z: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "S k"]:
        """Return draws as vectors whose distances mean something.

        Coefficients as they are. Of a mixture the modes and weights (K(D + 1) numbers), after the
        clusters of every draw have been matched one to one with the poles that generated the
        data, with the largest sum of cosines (Hungarian method): a posterior does not know which
        cluster is called the first.
        """
        if self.family != DIRECTIONAL:
            return z
        modes, weights = mixtures(z)
        order = [linear_sum_assignment(POLES @ one.T, maximize=True)[1] for one in modes]
        order = np.stack(order)
        modes = np.take_along_axis(modes, order[:, :, None], axis=1)
        weights = np.take_along_axis(weights, order, axis=1)
        return np.concatenate([modes.reshape(len(z), -1), weights], axis=1)

    def cut(self, rows: int) -> DataSet:
        """Return the first rows only, and as many test rows at most."""
        return replace(self, train=_first(self.train, rows), test=_first(self.test, rows))


def mixtures(
    z: Float[np.ndarray, "S d"],
) -> tuple[Float[np.ndarray, "S K D"], Float[np.ndarray, "S K"]]:
    """Return modes and weights of unconstrained draws; JAX flattens leaves by name."""
    K, D = POLES.shape
    logits, modes = z[:, :K], z[:, K:].reshape(-1, K, D)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    modes = modes / np.linalg.norm(modes, axis=2, keepdims=True)
    return modes, weights / weights.sum(axis=1, keepdims=True)


@cache
def load(name: str) -> DataSet:
    """Return a data set by its name in `NAMES`; real ones come from the data folder."""
    return _LOADERS[name]()


def _archived(name: str, family: str, file: str) -> DataSet:
    arrays = common.archive(file)
    x, y = arrays["X"].astype(float), arrays["y"].astype(float)
    test, y_test = arrays["Xt"].astype(float), arrays["yt"].astype(float)
    whiten = whitening(x)
    model = LogisticRegression() if family == LOGISTIC else PoissonRegression(link="softplus")
    train, held_out = {"x": whiten(x), "y": y}, {"x": whiten(test), "y": y_test}
    return DataSet(name, family, model, train, held_out)


def whitening(
    x: Float[np.ndarray, "N D"],
) -> Callable[[Float[np.ndarray, "n D"]], Float[np.ndarray, "n D"]]:
    """Return what gives all columns but the last, the intercept, mean 0 and covariance I."""
    mean = x[:, :-1].mean(axis=0)
    chol = np.linalg.cholesky(np.atleast_2d(np.cov(x[:, :-1], rowvar=False)))

    def whiten(rows: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
        return np.column_stack([np.linalg.solve(chol, (rows[:, :-1] - mean).T).T, rows[:, -1]])

    return whiten


def _phishing() -> DataSet:
    arrays = common.archive("phishing_full")
    x, y = arrays["X"].astype(float) / np.sqrt(30.0), arrays["y"].astype(float)
    x = np.column_stack([x, np.ones(len(x))])
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test, train = order[:PHISHING_HELD_OUT], order[PHISHING_HELD_OUT:]
    return DataSet(
        "phishing", LOGISTIC, LogisticRegression(),
        {"x": x[train], "y": y[train]}, {"x": x[test], "y": y[test]},
    )  # fmt: skip


def _directional() -> DataSet:
    rng = np.random.default_rng(SPLIT_SEED)
    clusters = rng.integers(len(POLES), size=CLUSTER_ROWS)
    x = sample_vmf(rng, POLES[clusters], CONCENTRATION)
    model = VonMisesFisherMixture(len(POLES), POLES.shape[1], CONCENTRATION)
    train, test = x[CLUSTER_HELD_OUT:], x[:CLUSTER_HELD_OUT]
    return DataSet("synth_vmf", DIRECTIONAL, model, {"x": train}, {"x": test})


def _first(table: Table, rows: int) -> Table:
    return {name: column[:rows] for name, column in table.items()}


_LOADERS: dict[str, Callable[[], DataSet]] = {
    "synth_lr": lambda: _archived("synth_lr", LOGISTIC, "synth_lr_large"),
    "phishing": _phishing,
    "chemreact": lambda: _archived("chemreact", LOGISTIC, "ds1_large"),
    "synth_poiss": lambda: _archived("synth_poiss", POISSON, "synth_poiss_large"),
    "biketrips": lambda: _archived("biketrips", POISSON, "biketrips_large"),
    "airportdelays": lambda: _archived("airportdelays", POISSON, "airportdelays_large"),
    "synth_vmf": _directional,
}

NAMES = tuple(_LOADERS)


def family_of(name: str) -> str:
    """Return the family of a set."""
    return next(family for family, names in FAMILIES.items() if name in names)
