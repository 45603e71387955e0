"""What the bridges share: a model of another framework, seen as a prior and one number per row.

A bridge answers three pure functions of the unconstrained parameters θ and some rows x_n,

    potentials(θ, x) = (f_1(θ), ..., f_n(θ)),   log_prior(θ, x) = log π₀(θ),   constrain(θ),

and a coreset of it is only right if f_n depends on row n alone and π₀ on no row. Frameworks do not
promise either (a model may standardise its covariates or centre a prior at the mean response), so
`probe` evaluates rows together and apart, and
`check_row_by_row` compares.
"""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.bridges.likelihood_params import LikelihoodParams, find_likelihood_params
from decoct.bridges.per_row_latents import PER_ROW, check_latents
from decoct.data.base import Columns, Rows
from decoct.data.encoded import EncodedRows, encoded
from decoct.errors import ModelError, RequestError
from decoct.models.base import (
    AbstractModel,
    EncodedColumns,
    Params,
    RawRows,
    column,
    numeric_columns,
)
from decoct.models.index_bounds import check_indices
from decoct.models.parameters import NoiseScale, ParameterSpace
from decoct.models.site import GaussianSite
from decoct.runtime.precision import float64

PROBES = (3, 5)
"""Numbers of rows a model is tried on: neither is 1, which would broadcast silently."""

NARROW, WIDE, TRIES = 0.1, 2.0, 20
"""Starting points: uniform within the first of zero, or else the second, and their number."""

MORE = 1000
"""Rows on which a model is tried that is not finite on the first ones."""

MISFITS = (ImportError, AttributeError, TypeError)
"""Errors of an import of incompatible packages."""

Evaluate = Callable[[Params, Mapping[str, Any]], tuple[Array, Array, dict[str, Array]]]
"""A pure JAX function of parameters and rows: potentials, log prior, constrained values."""


class Original:
    """The user's rows and model, which decoct's model can return but does not contain.

    As a pytree this has neither leaves nor identity, and pickled it is empty: compiled functions,
    their caches and messages to workers never contain the data.
    """

    def __init__(self, rows: Rows | None = None, model: Any = None) -> None:
        self.rows, self.model = rows, model

    def __reduce__(self) -> tuple[type[Original], tuple[()]]:
        return Original, ()


jax.tree_util.register_pytree_node(Original, lambda _: ((), None), lambda *_: Original())


@dataclass(frozen=True)
class InputColumns:
    """The encoding of a bridge's inputs: each as numbers, float64 or whole."""

    columns: tuple[str, ...]

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        return numeric_columns({name: column(rows, name) for name in self.columns}, start)


class BridgeModel(AbstractModel):
    """A model of another framework. Sub-classes add what evaluates it.

    Attributes
    ----------
    name
        What the framework calls it; in coreset files.
    start
        Where to start, in unconstrained space: name -> array.
    inputs
        Names of the row-wise inputs.
    axes
        Constrained names, and the name of each of their axes.
    original
        The rows, and for PyMC the model, that this was made from.
    likelihood_params
        What of the parameters the rows depend on, in which a site is a quadratic: names and shapes.
    template
        A few encoded rows, for evaluating what depends on no row.
    improper
        Names of the parameters whose prior has no integral.
    program
        The model's functions of parameters and rows: `potentials`, `log_prior` and `values`, all of
        them by `evaluate`, and the inverse of `values`, `unconstrained`.
    named
        Names of the constrained values that do not depend on the rows.
    """

    kind: ClassVar[str]
    predicts: ClassVar[str]
    """What predicts in that framework."""

    name: str = eqx.field(static=True)
    start: dict[str, np.ndarray]
    inputs: tuple[str, ...] = eqx.field(static=True)
    axes: tuple[tuple[str, tuple[str, ...]], ...] = eqx.field(static=True)
    original: Original
    likelihood_params: LikelihoodParams = eqx.field(static=True)
    template: dict[str, np.ndarray]
    improper: tuple[str, ...] = eqx.field(static=True)
    program: Any = eqx.field(static=True)
    named: tuple[str, ...] = eqx.field(static=True)

    def potentials(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return Σ over what is observed of log p(row n), in nats; pure JAX."""
        return self.program.potentials(params, rows)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return the log density of everything else, Jacobians included; pure JAX."""
        return self.program.log_prior(params, as_arrays(self.template))

    def constrain(self, params: Params) -> dict[str, Array]:
        """Return latent and deterministic quantities on their natural scale.

        Those that depend on the rows are left out: they are no parameters. The framework's own
        functions give them for any rows, from the same draws.
        """
        values = self.program.values(params, as_arrays(self.template))
        return {name: jnp.asarray(values[name]) for name in self.named}

    @property
    def rows(self) -> Rows:
        """The row-wise inputs as a table, for `decoct.build` and `decoct.check`."""
        if self.original.rows is None:
            raise RequestError(
                "This model came from another process or a compiled function and no longer has "
                "its rows; pass the table itself."
            )
        return self.original.rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self.inputs

    def init(self, rows: RawRows) -> Params:
        return self.start

    def to_likelihood_params(self, params: Params) -> Params:
        """Return φ(θ), a mapping of the names in `likelihood_params` -> array; pure JAX.

        In float64 for arrays of NumPy's; JAX's have the precision that JAX is set to.
        """
        is_numpy = not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
        with jax.enable_x64(True) if is_numpy else nullcontext():
            rows = as_arrays(self.template)
            return self.likelihood_params.compute(self.potentials, params, rows)

    def to_effects(self, params: Params) -> Params:
        rows = as_arrays(self.template)
        return self.likelihood_params.in_own_units(self.potentials, params, rows)

    @property
    def noise_scale(self) -> NoiseScale | None:
        return self.likelihood_params.noise

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return the potential f_n of every row at likelihood parameters φ, in nats; pure JAX."""
        return self.likelihood_params.evaluate(self.potentials, params, self.start, dict(rows))

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return the inputs as numbers: float64, integers and booleans as they are."""
        return InputColumns(self.inputs).encode(rows, start)

    def predict(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Refused: the framework predicts."""
        raise RequestError(
            f"A model of {self.kind} predicts in {self.kind}: give the draws to {self.predicts}."
        )

    def check(self, rows: Rows) -> None:
        """Refuse group numbers outside their array, and a latent for every row; two passes."""
        self.check_rows(rows)
        check_latents(self, self.start, rows)

    def check_rows(self, rows: Rows) -> None:
        """Refuse group numbers outside their array, which JAX would clamp; one pass."""
        check_indices(self, self.start, encoded(rows, self))

    @float64
    def flattened(
        self, given: Mapping[str, Any], what: str, source: str
    ) -> Float[np.ndarray, "chains S d"]:
        """Return a framework's draws, name -> (chains, S, ...), as flat unconstrained ones.

        ``what`` the names are of, and the ``source`` of the draws, are for the message about a
        missing one.
        """
        missing = [name for name in self.start if name not in given]
        if missing:
            raise ModelError(
                f"The draws lack the {what} '{missing[0]}'; give what {source} returned."
            )
        values = {name: np.asarray(given[name], dtype=np.float64) for name in self.start}
        return np.asarray(_unconstrained(self, values))

    def dims(self) -> dict[str, list[str]]:
        return {name: list(names) for name, names in self.axes}

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the parameters' shapes: a file cannot store the model itself."""
        shapes = {name: list(np.shape(value)) for name, value in self.start.items()}
        return {"kind": self.kind, "name": self.name, "parameters": shapes}


@eqx.filter_jit
def _unconstrained(model: Any, values: Mapping[str, Any]) -> Float[Array, "chains S d"]:
    def one(values: Mapping[str, Array]) -> Float[Array, " d"]:
        params = model.program.unconstrained(values, as_arrays(model.template))
        return ParameterSpace.ravel({name: params[name] for name in model.start})

    return jax.vmap(jax.vmap(one))(values)


class SiteDensity:
    """The log density of a coreset's site as a function of θ: name -> array, to a number; pure JAX.

    The site is a quadratic in the flat φ(θ) of the model.
    """

    def __init__(self, model: BridgeModel, site: GaussianSite) -> None:
        # a copy: JAX remembers arrays that a function closes over, in the framework's precision
        self.model, self.site = model, copy.deepcopy(site)

    def __call__(self, params: Params) -> Float[Array, ""]:
        phi = self.model.to_likelihood_params(params)
        return self.site.log_density(ParameterSpace.ravel(phi))


@dataclass(frozen=True)
class Package:
    """An optional package, and the releases of it that a bridge works with.

    Attributes
    ----------
    name
        Its import name, also its name on the package index.
    extra
        The extra of decoct that brings it.
    oldest
        Oldest release that works.
    below
        First release that does not, if one is known.
    """

    name: str
    extra: str
    oldest: str
    below: str = ""

    @property
    def releases(self) -> str:
        """What works, as pip writes it: ``pymc>=5.28,<7``."""
        return f"{self.name}>={self.oldest}" + (f",<{self.below}" if self.below else "")

    @property
    def install(self) -> str:
        """The command that brings a release that works."""
        return f"pip install --upgrade 'decoct[{self.extra}]'"


def require(package: Package) -> ModuleType:
    """Import an optional package; a `RequestError` says what to install."""
    with fitting(package):
        module = importlib.import_module(package.name)
    version = module.__version__
    is_old = _numbers(version) < _numbers(package.oldest)
    if is_old or (package.below and _numbers(version) >= _numbers(package.below)):
        raise RequestError(
            f"{package.name} {version} is installed; decoct works with {package.releases}. "
            f"Install such a release with: {package.install}."
        )
    return module


@contextmanager
def fitting(package: Package) -> Iterator[None]:
    """Turn an import that fails, of an optional package or inside it, into a `RequestError`."""
    try:
        yield
    except MISFITS as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package.name:
            raise RequestError(
                f"This needs {package.name}, which is not installed; install it with: "
                f"{package.install}."
            ) from None
        raise RequestError(
            f"{package.name} is installed but does not work with the other packages here "
            f"({type(error).__name__}: {error}); decoct works with {package.releases}. Install "
            f"versions that fit with: {package.install}."
        ) from error


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version: (0, 18, 1) of ``0.18.dev1``."""
    return tuple(map(int, re.findall(r"\d+", version)))


def probe_indices(n_rows: int, n: int) -> np.ndarray:
    """Return n row numbers spread over the table; a short table repeats some.

    Neither end is among them: there a sorted column has its smallest and largest value.
    """
    return np.linspace(0, n_rows - 1, n + 2)[1:-1].astype(np.int64)


def as_arrays(rows: Mapping[str, Any]) -> dict[str, Array]:
    """Return columns as JAX arrays."""
    return {name: jnp.asarray(values) for name, values in rows.items()}


class Probe(NamedTuple):
    """A model at several points, on a few rows together and apart.

    Attributes
    ----------
    points
        Unconstrained parameters, stacked along the first axis.
    few
        The rows, encoded.
    whole, apart : (points, n)
        Potentials of all the rows at once, and of two parts of them.
    priors : (points, 2)
        The log prior, evaluated with either part.
    values
        Constrained name -> its values, evaluated with either part.
    """

    points: dict[str, np.ndarray]
    few: Columns
    whole: Array
    apart: Array
    priors: Array
    values: dict[str, tuple[Array, Array]]


def probe(
    evaluate: Evaluate,
    shapes: Mapping[str, tuple[int, ...]],
    table: Rows,
    own: Mapping[str, np.ndarray] | None,
) -> Probe:
    """Evaluate a model on a few rows of an encoded table, together and apart, as in a pass.

    ``shapes`` are those of its parameters, ``own`` is the framework's starting point.
    """
    points = starting_points(shapes, own)
    few = table.take(probe_indices(table.n_rows, PROBES[-1]))
    cut = PROBES[-1] // 2

    def at(params: Params, rows: Mapping[str, Array]) -> Any:
        parts = [{k: v[part] for k, v in rows.items()} for part in (slice(cut), slice(cut, None))]
        whole, _, _ = evaluate(params, rows)
        (one, prior, values), (other, prior_too, values_too) = (evaluate(params, p) for p in parts)
        both = {name: (value, values_too[name]) for name, value in values.items()}
        return whole, jnp.concatenate([one, other]), jnp.stack([prior, prior_too]), both

    try:
        return Probe(points, few, *jax.jit(jax.vmap(at, in_axes=(0, None)))(points, as_arrays(few)))
    except jax.errors.JAXTypeError as error:
        raise ModelError(
            "The model reads the values of its rows while it is compiled, such as ids.max() for a "
            "size, int(x[0]), or a Python if on data. Pass sizes and flags as constants, computed "
            "outside the model, and use jnp.where or pm.math.switch for choices. JAX says: "
            f"{quoted(error)}"
        ) from error


def starting_points(
    shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray]:
    """Return points to start from, stacked: near zero, and near the framework's ``own`` point.

    They are off these to break symmetries. The others are up to 2 from zero in every coordinate, as
    for the frameworks' samplers.
    """
    rng = np.random.default_rng(0)
    points = {name: rng.uniform(-WIDE, WIDE, (TRIES, *shape)) for name, shape in shapes.items()}
    for name, values in points.items():
        values[:2] *= NARROW / WIDE
        if own is not None:
            values[1] += own[name]
    return points


def chosen_start(probed: Probe, evaluate: Evaluate, table: Rows) -> dict[str, np.ndarray]:
    """Return a point at which prior and potentials are finite; `ModelError` if none is.

    Of the first two it is the one with the larger density, else the first of the others. If some
    point of the probe gives no finite value on its few rows, all are tried on more rows of the
    encoded table, with zero.
    """
    points, potentials, priors = probed.points, probed.whole, probed.priors[:, 0]
    finite = np.isfinite(probed.whole).all(axis=1) & np.isfinite(probed.priors).all(axis=1)
    if not finite.all():
        points = {k: np.concatenate([v, np.zeros_like(v[:1])]) for k, v in points.items()}
        more = as_arrays(table.take(probe_indices(table.n_rows, min(MORE, table.n_rows))))
        potentials, priors = jax.jit(jax.vmap(lambda at: evaluate(at, more)[:2]))(points)
        on_more = np.isfinite(potentials).all(axis=1) & np.isfinite(priors)
        # if no point is finite, the build names the row that is impossible at this one
        finite = on_more if on_more.any() else finite
    tried = len(next(iter(points.values())))
    if not finite.any():
        raise ModelError(
            f"The model's log density is not finite at any of {tried} starting points, most "
            f"of them within {WIDE:g} of zero in unconstrained space; scale its data, drop rows "
            "that are impossible under the model, or use a link that allows every value."
        )
    density, found = np.sum(potentials, axis=1) + priors, np.flatnonzero(finite)
    near = found[found < 2] if found[0] < 2 else found[:1]
    place = near[np.argmax(density[near])]
    return {name: values[place] for name, values in points.items()}


def check_row_by_row(probed: Probe) -> None:
    """Refuse a model in which a row's potential, or the prior, depends on (other) rows.

    Potentials are compared at points where all are finite, if there are any: PyMC makes those of
    all rows −∞ where one row has a parameter out of range.
    """
    finite = np.isfinite(probed.whole).all(axis=1) & np.isfinite(probed.apart).all(axis=1)
    where = finite if finite.any() else slice(None)
    if not _same(probed.whole[where], probed.apart[where]):
        raise ModelError(
            "The log-likelihood of a row changes with the other rows given: the model computes "
            "something from the whole table (a mean, a maximum, a rank). Compute it outside the "
            "model and pass it as a constant."
        )
    if not _same(probed.priors[:, 0], probed.priors[:, 1]):
        raise ModelError(
            "The prior, or a factor outside the rows' plate, changes with the rows given. A "
            "prior's constants must be computed outside the model and passed as constants; a "
            "factor that belongs to the rows goes inside the plate, one value per row."
        )


def _same(first: Array, second: Array) -> bool:
    return np.allclose(first, second, rtol=1e-8, atol=1e-10, equal_nan=True)


def common_fields(
    program: Any,
    names: Iterable[str],
    probed: Probe,
    table: EncodedRows,
) -> dict[str, Any]:
    """Return the fields of a `BridgeModel` that a program gives; refuse what is no sum over rows.

    ``names`` have its constrained values in order; ``probed`` is the program on a few rows of the
    encoded ``table``.
    """
    check_row_by_row(probed)
    few, pairs = probed.few, probed.values
    named = tuple(k for k in names if k in pairs and np.array_equal(*pairs[k], equal_nan=True))
    start = chosen_start(probed, program.evaluate, table)

    def values(params: Params) -> dict[str, Array]:
        found = program.values(params, as_arrays(few))
        return {name: found[name] for name in named}

    return {
        "start": start,
        "inputs": table.columns,
        "likelihood_params": find_likelihood_params(program.potentials, start, few, values),
        "template": {name: column[: PROBES[0]] for name, column in few.items()},
        "program": program,
        "named": named,
    }


def refuse_size(
    what: str, shape: tuple[int, ...], n: int, other: tuple[int, ...], m: int, remedy: str
) -> NoReturn:
    """Refuse a latent array whose shape on n rows is another than on m."""
    sizes = f"{what} has shape {shape} on {n} rows and {other} on {m}"
    if n in shape and m in other:
        raise ModelError(f"{sizes}. {PER_ROW}")
    raise ModelError(
        f"{sizes}: its size is worked out from the rows (such as ids.max() + 1), and a coreset "
        f"need not have a row of every group. {remedy}"
    )


def quoted(error: BaseException) -> str:
    """Return what another package says, as a short phrase."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
