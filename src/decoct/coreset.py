"""The coreset: M rows and their weights, never the full data."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from decoct.errors import RequestError
from decoct.models.base import AbstractModel, is_of_functions
from decoct.models.site import GaussianSite
from decoct.report import Report
from decoct.runtime.checks import checked_whole
from decoct.runtime.precision import float64
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import check_seed
from decoct.runtime.resources import use_compilation_cache
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.stats.chains import MIXED_RHAT, USABLE_KHAT
from decoct.stats.divergences import Gaussian

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True, eq=False)
class Coreset:
    """M weighted rows, with or without a site, whose posterior stands in for that of all N rows.

    Attributes
    ----------
    indices : (M,) int64
        Rows kept, numbers in the original table, ascending; read-only.
    weights : (M,) float64
        Their weights, > 0, read-only; the weight multiplies the row's log-likelihood.
    rows
        The kept rows as the table had them: column -> array of M values.
    n_rows
        N, rows in the original table.
    model
        The model the rows were chosen for.
    report
        Method, seed, status, cost.
    site
        The quadratic that stands for all other rows; None where the rows stand alone.
    start : (d,)
        Unconstrained parameters of large density, where samplers start; None starts at the centre
        of the site, or where the model does.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=20)
    >>> coreset.n_rows, coreset.size == len(coreset.weights), bool((coreset.weights > 0).all())
    (500, True, True)
    """

    indices: Int[np.ndarray, " M"]
    weights: Float[np.ndarray, " M"]
    rows: Mapping[str, np.ndarray]
    n_rows: int
    model: AbstractModel
    report: Report
    site: GaussianSite | None = None
    start: Float[np.ndarray, " d"] | None = None

    def __post_init__(self) -> None:
        for name in ("indices", "weights"):
            column = getattr(self, name).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    @property
    def size(self) -> int:
        """M, the number of rows kept."""
        return len(self.indices)

    @cached_property
    def density(self) -> WeightedDensity:
        """π_w as a density over flat unconstrained parameters."""
        encoded = self.model.encode(self.rows, self.indices)
        known = {"site": self.site, "start": self.start}
        return WeightedDensity.of(self.model, encoded, self.weights, **known)

    @property
    def dim(self) -> int:
        """d, the number of unconstrained parameters."""
        return self.density.dim

    @float64
    def log_density(self, z: Float[np.ndarray, " d"]) -> Float[Any, ""]:
        """Return log π_w(z) + const = log π₀(z) + s(z) + Σ w_n f_n(z), s the site if there is one.

        Parameters
        ----------
        z : (d,)
            Flat unconstrained parameters; JAX tracers too, so that any JAX sampler can use this. In
            float32 mode trace it under ``jax.enable_x64(True)``.

        Returns
        -------
        jax.Array
            A scalar, in nats.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
        >>> model = decoct.models.GaussianMean(np.eye(2))
        >>> coreset = decoct.build(model, rows, size=0)
        >>> mean = rows["x"].sum(axis=0) / 501  # of the posterior N(mean, I/501)
        >>> float(coreset.log_density(mean) - coreset.log_density(mean + 0.1)).__round__(6)
        5.01
        """
        return self.density.log_density(jnp.asarray(z))

    def laplace(self) -> Gaussian:
        """Return the Laplace approximation of the coreset posterior, in unconstrained parameters.

        Returns
        -------
        Gaussian
            Mean (d,) and covariance (d, d) of the flat unconstrained parameters.

        Raises
        ------
        ModelError
            Newton's method found no maximum; the message says why and what to try.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
        >>> model = decoct.models.GaussianMean(np.eye(2))
        >>> coreset = decoct.build(model, rows, size=0)
        >>> (1.0 / coreset.laplace().sd ** 2).round(6).tolist()  # N + 1, the prior's precision 1
        [501.0, 501.0]
        """
        from decoct.samplers.laplace import find_mode, gaussian_at

        return gaussian_at(find_mode(self.density))

    def sample(
        self,
        draws: int = 1000,
        chains: int = 4,
        *,
        seed: int = 0,
        warmup: int = 1000,
        sampler: Sampler | None = None,
        progress: bool | None = None,
    ) -> xr.DataTree:
        """Draw from the coreset posterior π_w.

        Parameters
        ----------
        draws
            Draws per chain, after warm-up.
        chains
            Number of chains.
        seed
            Seed of the sampler.
        warmup
            NUTS adaptation steps per chain; at most 50 where a site gives units that fit.
        sampler
            A sampler of `decoct.samplers` to use in place of NUTS; ``chains`` replaces the
            sampler's own number of chains; its other options apply. A fitted mixture takes no
            sampler: its draws come from the variational posterior.
        progress
            Show a progress bar; None shows it on a terminal.

        Returns
        -------
        xarray.DataTree
            Groups ``posterior`` (named, natural scale), ``unconstrained_posterior`` (flat vector
            ``z``) and ``sample_stats``; ready for ArviZ. R-hat and ESS, the worst over the
            parameters, are attributes of ``posterior``.

        Raises
        ------
        RequestError
            draws, chains or warmup is not a whole number of at least 1, or seed not a whole number.
        ModelError
            The sampler met densities that are not finite.

        Warns
        -----
        UserWarning
            Transitions diverged, R-hat is above 1.05, or an approximation's k-hat above 0.7.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> rows = {"x": rng.normal(size=(500, 2)), "y": rng.integers(0, 2, 500)}
        >>> coreset = decoct.build(decoct.models.LogisticRegression(prior_scale=1.0), rows, size=5)
        >>> draws = coreset.sample(draws=500, chains=2, seed=1)
        >>> draws["posterior"]["beta"].shape
        (2, 500, 2)
        >>> again = coreset.sample(draws=500, chains=2, sampler=decoct.samplers.Laplace())
        """
        for option, value in {"draws": draws, "chains": chains, "warmup": warmup}.items():
            checked_whole(option, value, 1)
        from decoct.samplers.datatree import MARK, to_datatree
        from decoct.samplers.nuts import NUTS

        use_compilation_cache()
        sampler = NUTS(warmup=warmup) if sampler is None else sampler
        drawn = self._drawn(jax.random.key(check_seed(seed)), sampler, draws, chains, progress)
        _warn_of_problems(drawn)
        tree = to_datatree(self.model, self.density.space, self.rows, drawn)
        tree.attrs[MARK] = self.fingerprint
        return tree

    @property
    def fingerprint(self) -> str:
        """A digest of row numbers, weights and site, by which draws are known."""
        site = jax.tree.leaves(self.site)
        parts = (np.asarray(self.indices, dtype=np.int64), self.weights, *site)
        return hashlib.sha256(b"".join(np.asarray(one).tobytes() for one in parts)).hexdigest()

    def _drawn(self, key: Any, sampler: Any, draws: int, chains: int, progress: Any) -> Draws:
        if not hasattr(sampler, "chains"):
            drawn = sampler.draw(key, self.density, draws * chains)
            flat = drawn.flat[: draws * chains]
            return Draws(flat.reshape(chains, draws, -1), drawn.sampler, drawn.info)
        sampler = dataclasses.replace(sampler, chains=chains)
        with ProgressBar(progress) as bar:
            bar.begin("sampling", sampler.warmup + draws, "draws")
            return sampler.sample(key, self.density, draws, bar.advance)

    def log_likelihood(self, draws: xr.DataTree, rows: Any = None) -> xr.DataTree:
        """Return draws with the log-likelihood of rows of the full table, for ``arviz.loo``.

        The kept rows are refused: LOO of weighted rows means nothing. See
        `decoct.samplers.pointwise`.

        Parameters
        ----------
        draws
            What ``sample()`` or ``check.correct()`` returned.
        rows
            The table the coreset was built from, or a random part of it.

        Returns
        -------
        xarray.DataTree
            The draws with a group ``log_likelihood``: ``rows`` (chain, draw, row), in nats.

        Raises
        ------
        RequestError
            No rows, or the kept ones, are given; or they are too many to hold.

        See Also
        --------
        decoct.loo : Leave-one-out of all rows of a table of any size, in bounded memory.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
        >>> model = decoct.models.GaussianMean(np.eye(2))
        >>> coreset = decoct.build(model, rows, size=0)
        >>> draws = coreset.sample(draws=100, chains=2, sampler=decoct.samplers.Exact())
        >>> log_likelihoods = coreset.log_likelihood(draws, rows)
        >>> log_likelihoods["log_likelihood"]["rows"].shape
        (2, 100, 500)
        """
        from decoct.samplers.pointwise import log_likelihood

        return log_likelihood(self.model, self.rows, self.n_rows, draws, rows)

    def predict(
        self,
        rows: Any,
        draws: xr.DataTree | np.ndarray,
        *,
        kind: str = "mean",
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        seed: int = 0,
        progress: bool | None = None,
    ) -> pd.DataFrame:
        """Return mean, standard deviation and quantiles of the posterior predictive of new rows.

        Parameters
        ----------
        rows
            New rows: anything `decoct.rows` takes, with the columns that the model predicts from.
            The response need not be among them, and is not read; of a `decoct.Model` every column
            that is there must be good numbers.
        draws
            What ``sample()`` or ``check.correct()`` returned, or an array of flat unconstrained
            ones (n, d) or (chains, n, d). Every row is evaluated at all of them.
        kind
            ``"mean"``: the expected response E[y | θ], a probability of y = 1, a rate or x·β; the
            quantiles say how well it is known. ``"response"``: new observations y ~ p(y | θ),
            noise included; at every draw one is simulated.
        quantiles
            Probabilities between 0 and 1, each of which is a column.
        seed
            Seed of the simulated observations.
        progress
            Show a progress bar; None shows it on a terminal.

        Returns
        -------
        pandas.DataFrame
            A line for every row, in their order: ``mean``, ``sd``, and ``q5``, ``q50``, … over the
            draws.

        Raises
        ------
        RequestError
            The model cannot predict, or not of this kind; the draws are another model's or
            weighted; a quantile is not between 0 and 1.
        RowsError
            A column is missing; a value is missing, or a level never seen; a prediction is not
            finite. The message names column and row.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> table = {"x": np.linspace(-1.0, 1.0, 500)}
        >>> table["y"] = 3.0 * table["x"] + np.random.default_rng(0).normal(size=500)
        >>> model = decoct.models.LinearRegression(prior_scale=10.0, noise_scale=1.0)
        >>> coreset = decoct.build(model, table, size=5)
        >>> draws = coreset.sample(draws=500, sampler=decoct.samplers.Exact())
        >>> new = {"x": np.array([0.0, 1.0])}
        >>> coreset.predict(new, draws)["mean"].round(1).tolist()
        [0.0, 3.0]
        >>> coreset.predict(new, draws, kind="response")["sd"].round(1).tolist()
        [1.0, 1.0]
        """
        import pandas as pd

        with ProgressBar(progress):
            chunks = self.predict_chunks(rows, draws, kind=kind, quantiles=quantiles, seed=seed)
            return pd.concat(chunks)

    def predict_chunks(
        self,
        rows: Any,
        draws: xr.DataTree | np.ndarray,
        *,
        kind: str = "mean",
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        seed: int = 0,
    ) -> Generator[pd.DataFrame, None, None]:
        """Return what `predict` does, up to 65,536 rows at a time, for tables larger than memory.

        The index is the number of the row in the table. Arguments and errors are those of
        `predict`; those of single rows come with their chunk.

        Yields
        ------
        pandas.DataFrame
            Predictions of the next rows.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> rows = {"x": rng.normal(size=(500, 2)), "y": rng.integers(0, 2, 500)}
        >>> coreset = decoct.build(decoct.models.LogisticRegression(prior_scale=1.0), rows, size=5)
        >>> draws = coreset.sample(draws=50, sampler=decoct.samplers.Laplace())
        >>> new = {"x": np.zeros((100_000, 2))}
        >>> [len(chunk) for chunk in coreset.predict_chunks(new, draws)]
        [65536, 34464]
        """
        from decoct.passes.predictions import Predictive
        from decoct.samplers.datatree import refuse_weighted, unconstrained

        use_compilation_cache()
        refuse_weighted(draws)
        space = self.density.space  # refuses a coreset without a density, such as a mixture's
        z = unconstrained(draws, space.dim, self.fingerprint).reshape(-1, space.dim)
        predictive = Predictive.of(self.model, space, z, kind, quantiles, seed)
        return predictive.chunks(rows, self.rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the coreset to one Parquet file that R, DuckDB or pandas can read as well.

        Columns are the kept rows', plus ``_row`` and ``_weight``; everything else is JSON in the
        file's metadata. The file appears complete or not at all.

        Raises
        ------
        RequestError
            The folder is not there, or cannot be written to.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
        >>> model = decoct.models.GaussianMean(np.eye(2))
        >>> coreset = decoct.build(model, rows, size=0)
        >>> coreset.save("coreset.parquet")
        >>> decoct.load("coreset.parquet").n_rows
        500
        """
        from decoct.formats.coreset_file import write_coreset

        write_coreset(path, self.indices, self.weights, self.rows, self.description())

    def description(self) -> dict[str, Any]:
        """Return all that a file stores besides the rows; JSON-ready.

        Returns
        -------
        dict
            Model, report, number of rows, and site and start if there are any.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
        >>> model = decoct.models.GaussianMean(np.eye(2))
        >>> coreset = decoct.build(model, rows, size=0)
        >>> sorted(coreset.description())
        ['model', 'n_rows', 'report', 'site']
        """
        model = self.model.to_dict()
        description = {
            "n_rows": self.n_rows,
            "model": model,
            "report": self.report.to_dict(),
        }
        if self.site is not None:
            from decoct.formats.site import site_to_dict

            description["site"] = site_to_dict(self.site)
        if self.start is not None:
            description["start"] = self.start.tolist()
        if is_of_functions(model):
            from decoct.models.fingerprint import fingerprint

            encoded = self.model.encode(self.rows, self.indices)
            description["values"] = fingerprint(self.model, encoded)
        return description

    def to_numpyro(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the coreset posterior as a NumPyro model and its arguments.

        ``model, args = coreset.to_numpyro()``, then ``MCMC(NUTS(model), ...).run(key, *args)``. For
        coresets of `decoct.from_numpyro` models. The sites are those of your own model, their names
        too, so that your model with these draws predicts. The log density of a kept row's observed
        sites is multiplied by its weight, as ``numpyro.handlers.scale`` would. The coreset's site
        is ``numpyro.factor("coreset_site", ...)``; of a coreset without rows the arguments are one
        row of the table, which is masked. NumPyro's precision is its own: call
        ``numpyro.enable_x64()`` for float64.

        Returns
        -------
        tuple
            The model, and the tuple of its positional arguments.

        Raises
        ------
        RequestError
            It was built for another kind of model.

        Examples
        --------
        >>> import decoct, jax, numpy as np, numpyro
        >>> from numpyro import distributions as dist
        >>> from numpyro.infer import MCMC, NUTS
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        ...     with numpyro.plate("data", len(x)):
        ...         numpyro.sample("obs", dist.Normal(mu, 1.0), obs=x)
        >>> rows = {"x": np.random.default_rng(0).normal(size=500)}
        >>> coreset = decoct.build(decoct.from_numpyro(model, rows), rows, size=2)
        >>> weighted, args = coreset.to_numpyro()
        >>> sampler = MCMC(NUTS(weighted), num_warmup=200, num_samples=200, progress_bar=False)
        >>> sampler.run(jax.random.key(0), *args)
        >>> abs(sampler.get_samples()["mu"].mean() - rows["x"].mean()) < 0.02
        Array(True, dtype=bool)
        """
        return self._export("to_numpyro", "decoct.from_numpyro")

    def to_pymc(self) -> Any:
        """Return the coreset posterior as a PyMC model, for ``pm.sample()`` and nutpie.

        For coresets of `decoct.from_pymc` and `decoct.from_bambi` models. It is a copy of your
        model with the M rows as its ``pm.Data``, all variables and dimensions with their names,
        and a potential ``coreset_weighting`` that gives row m the weight w_m. The weights are
        ``pm.Data`` as well, ``coreset_weights``. The coreset's site is a potential
        ``coreset_site``.

        Returns
        -------
        pymc.Model
            A model of its own; yours is not changed.

        Raises
        ------
        RequestError
            It was built for another kind of model, or its PyMC model is in another process.

        Examples
        --------
        >>> import decoct, numpy as np, pymc as pm
        >>> x = np.random.default_rng(0).normal(size=500)
        >>> with pm.Model() as model:
        ...     data = pm.Data("x", x)
        ...     mu = pm.Normal("mu", 0.0, 10.0)
        ...     observed = pm.Normal("obs", mu, 1.0, observed=data)
        >>> bridge = decoct.from_pymc(model)
        >>> weighted = decoct.build(bridge, bridge.rows, size=2).to_pymc()
        >>> [potential.name for potential in weighted.potentials]
        ['coreset_weighting', 'coreset_site']
        """
        return self._export("to_pymc", "decoct.from_pymc")

    def to_stan(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Mapping[str, str] | Collection[str] | None = None,
        constants: Mapping[str, Any] | None = None,
        count_from_one: Collection[str] = (),
    ) -> None:
        """Write the kept rows as Stan data in JSON: columns, their number ``N``, weights ``w``.

        A Stan program uses them after a change of one line: where it has
        ``y ~ normal(mu, sigma);`` it needs
        ``for (n in 1:N) target += w[n] * normal_lpdf(y[n] | mu[n], sigma);``, and
        ``vector<lower=0>[N] w;`` in its data block. The coreset's site needs two statements more;
        `decoct.formats.stan.write_stan` has them.

        Parameters
        ----------
        path
            The file.
        columns
            Columns to write, or column -> name in the Stan program; None writes those the model
            uses.
        constants
            More data, such as ``{"J": 386}``.
        count_from_one
            Columns of group numbers counted from 0: 1 is added, for Stan counts from 1.

        Raises
        ------
        RequestError
            A column is not there or Stan cannot hold it, or a name is not one for Stan.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> rows = {"x": rng.normal(size=(500, 2)), "y": rng.integers(0, 2, 500)}
        >>> coreset = decoct.build(decoct.models.LogisticRegression(prior_scale=1.0), rows, size=5)
        >>> import json, pathlib
        >>> coreset.to_stan("coreset.json")
        >>> sorted(json.loads(pathlib.Path("coreset.json").read_text()))[:5]
        ['N', 'd', 'site_centre', 'site_effects', 'site_factors']
        """
        from decoct.formats.stan import write_stan

        used = getattr(self.model, "columns", None) if columns is None else columns
        write_stan(path, self.rows, self.weights, used, constants, count_from_one, self.site)

    def _export(self, export: str, maker: str) -> Any:
        """Return the posterior as a model of the package that the model came from."""
        if not hasattr(self.model, export):
            raise RequestError(
                f"This coreset was built for a {type(self.model).__name__}; {export}() is for "
                f"coresets of models that {maker} returns."
            )
        return getattr(self.model, export)(self)

    def __repr__(self) -> str:
        kl = self.report.predicted_kl
        predicted = "" if kl is None else f", predicted KL {kl:.2g} nats"
        site = "" if self.site is None else " and a site"
        return (
            f"Coreset({self.size} of {self.n_rows:,} rows{site}{predicted}, "
            f"{type(self.model).__name__}, status {self.report.status.name})"
        )


def require_coreset(given: object) -> None:
    """Refuse anything else in the place of a coreset, such as the table."""
    if not isinstance(given, Coreset):
        raise RequestError(
            f"The coreset must be what decoct.build or decoct.load returned, not a "
            f"{type(given).__qualname__}; it comes first."
        )


def _warn_of_problems(draws: Draws) -> None:
    diverged = int(np.sum(draws.info.get("diverging", 0)))
    if diverged:
        warnings.warn(
            f"{diverged} of {draws.z.shape[0] * draws.z.shape[1]} transitions diverged; raise "
            "target_acceptance (sampler=NUTS(target_acceptance=0.95)) or reparametrise the model.",
            stacklevel=3,
        )
    khat = draws.info.get("khat", -np.inf)
    if khat > USABLE_KHAT:
        warnings.warn(
            f"The draws of {draws.sampler} do not fit the coreset posterior (k-hat {khat:.2f}, "
            f"above {USABLE_KHAT}); use NUTS.",
            stacklevel=3,
        )
    rhat = draws.info.get("rhat", np.nan)
    if rhat > MIXED_RHAT:
        warnings.warn(
            f"R-hat is {rhat:.3f}: the chains have not mixed; take more draws and warm-up.",
            stacklevel=3,
        )


def describe_by(
    description: Mapping[str, Any],
    indices: Int[np.ndarray, " M"],
    weights: Float[np.ndarray, " M"],
    rows: Mapping[str, np.ndarray],
    model: AbstractModel,
) -> Coreset:
    """Return the coreset of some rows and of what `Coreset.description` returned."""
    from decoct.formats.site import site_from_dict

    site, start = description.get("site"), description.get("start")
    return Coreset(
        indices,
        weights,
        rows,
        int(description["n_rows"]),
        model,
        Report.from_dict(description["report"]),
        site_from_dict(site) if site else None,
        None if start is None else np.array(start, dtype=np.float64),
    )
