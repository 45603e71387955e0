"""A NumPyro model run on any number of rows: potentials, prior, constrained values.

With z the unconstrained latent values, θ = T(z) their values on the supports of their
distributions, and ℓ_s the log-density of site s, scale included,

    f_n(z)      = Σ over observed sites s in the data plate of ℓ_s, summed over all axes but n
    log π₀(z)   = Σ over all other sites of ℓ_s + Σ_latent log|dT/dz|

A site's batch axes are aligned at the right, so that the plate's axis is its ``dim`` (negative).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.distributions import BernoulliLogits, biject_to
from numpyro.distributions.util import sum_rightmost
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger

from decoct.bridges.rewrites import PackageForm, rewrite
from decoct.errors import RequestError
from decoct.models.base import Params

SITE = "coreset_site"
"""Name of the factor that stands for the rows that are not kept."""

Site = dict[str, Any]
"""A site of a NumPyro trace."""

Trace = dict[str, Site]
"""What NumPyro's trace handler returns: name -> site."""


class Weights:
    """Weights along a plate, one array for each place the plate can have among a site's axes.

    The same object is returned each time: ArviZ compares traces of a model, scales and all, and
    arrays that are not the same cannot be compared there. A weight that is negative or NaN raises
    `RequestError`.
    """

    def __init__(self, values: np.ndarray) -> None:
        # NumPyro checks a scale only where it is no tracer, and refuses 0 there
        if not np.all(values >= 0.0):
            raise RequestError("A weight of the coreset is negative or NaN; weights are ≥ 0.")
        self.values = values
        self._along: dict[int, np.ndarray] = {}

    def along(self, dim: int) -> np.ndarray:
        """Return the weights as an array whose rows are on axis ``dim`` < 0, the first."""
        if dim not in self._along:
            self._along[dim] = self.values.reshape((-1,) + (1,) * (-dim - 1))
        return self._along[dim]


class RowsPlate(Messenger):
    """Give the data plate as many rows as the model is handed, and weight its observed sites.

    A plate of a fixed size N that is handed n rows becomes one of n rows without the factor N/n
    that NumPyro puts on subsamples. Weights act as those of ``numpyro.handlers.scale``, except that
    zeros are allowed and only observed sites of this plate are touched. If all are 0, the rows are
    masked.
    """

    def __init__(
        self, fn: Callable[..., Any] | None, plate: str, n: int, weights: Weights | None = None
    ) -> None:
        super().__init__(fn)
        self.plate, self.n, self.weights = plate, n, weights
        self.ratio = 1.0

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate" and msg["name"] == self.plate:
            size = msg["args"][0]
            self.ratio = size / self.n
            if size != self.n:
                msg["value"] = jnp.arange(self.n)
        if msg["type"] != "sample":
            return
        frame = frame_of(msg, self.plate)
        if frame is None:
            return
        if self.ratio != 1.0 and msg["scale"] is not None:
            msg["scale"] = msg["scale"] / self.ratio
        if self.weights is None or not msg["is_observed"]:
            return
        if not self.weights.values.any():
            msg["fn"] = msg["fn"].mask(False)  # no 0 · −∞
        else:
            aligned = self.weights.along(frame.dim)
            msg["scale"] = aligned if msg["scale"] is None else msg["scale"] * aligned


class LatentValues(Messenger):
    """Keep the values of latent sites as a model runs, to give them as unconstrained ones."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(None)
        self.names = names
        self.supports: dict[str, Any] = {}
        self.values: dict[str, Array] = {}

    def process_message(self, msg: Any) -> None:
        # before a handler further out, such as a reparametrisation, makes another site of it
        if msg["type"] == "sample" and msg["name"] in self.names:
            self.supports[msg["name"]] = msg["fn"].support

    def postprocess_message(self, msg: Any) -> None:
        if msg.get("name") in self.supports:  # a scan has none
            self.values[msg["name"]] = msg["value"]

    @property
    def unconstrained(self) -> dict[str, Array]:
        """z: name -> array."""
        return {k: biject_to(self.supports[k]).inv(self.values[k]) for k in self.names}


def make_bernoulli_forms(rows: Mapping[str, Array]) -> list[PackageForm]:
    """Return how NumPyro writes log p(y | logit) = log σ((2y − 1) logit), for each type of column.

    While NumPyro's validation is off, values y between 0 and 1 may be meant: NumPyro computes them.
    """
    types = {np.dtype(column.dtype) for column in rows.values()}
    return [_make_bernoulli_form(dtype) for dtype in sorted(types, key=str) if dtype.kind in "iubf"]


def _make_bernoulli_form(dtype: np.dtype) -> PackageForm:
    def written(y: Array, logits: Array) -> Array:
        return BernoulliLogits(logits, validate_args=dtype.kind == "f").log_prob(y)

    def meant(y: Array, logits: Array) -> tuple[Array, Array]:
        possible = (y == 0) | (y == 1)
        return jnp.where(y == 1, 1.0, -1.0) * logits, jnp.where(possible, 0.0, -jnp.inf)

    return PackageForm(written, (np.zeros(2, dtype), np.zeros(2)), meant)


def _prior_mean(site: Site) -> Any:
    """Return the prior mean of a latent site; a value near z = 0 where there is none."""
    other: Any = init_to_uniform(site, radius=1)
    if other is None:
        return None
    try:
        mean = jnp.asarray(site["fn"].mean)
    except Exception:  # whatever distributions raise that have none
        return other
    return jnp.where(jnp.isfinite(mean), mean, other) if mean.shape == other.shape else other


def frame_of(site: Any, plate: str) -> Any:
    """Return the frame of a plate in which a site lies, or None."""
    return next((frame for frame in site["cond_indep_stack"] if frame.name == plate), None)


def is_latent(site: Site) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


@dataclass(frozen=True, eq=False)
class Program:
    """A NumPyro model with its constant arguments; rows come with every call.

    Equal if of the same function and the same constants, so that compiled functions are shared.
    """

    model: Callable[..., Any]
    plate: str
    constants: Mapping[str, Any] = field(default_factory=dict)

    def potentials(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return f_n(z) for every row, rewritten to be fast and exact; pure JAX."""
        return rewrite(self._potentials, make_bernoulli_forms(rows))(params, dict(rows))

    def _potentials(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        log_probs, trace = self._log_probs(params, rows)
        total = jnp.zeros(_n_rows(rows))
        for name, values in log_probs.items():
            frame = frame_of(trace[name], self.plate)
            if frame is not None:
                total = total + _per_row(values, frame.dim)
        return total

    def log_prior(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, ""]:
        """Return log π₀(z), Jacobians included; any rows will do."""
        log_probs, trace = self._log_probs(params, rows)
        outside = (v for k, v in log_probs.items() if frame_of(trace[k], self.plate) is None)
        return sum((jnp.sum(values) for values in outside), start=jnp.zeros(()))

    def values(self, params: Params, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return every latent and deterministic site on its natural scale; pure JAX."""
        trace = self.trace(rows, partial(_placed, params))
        wanted = (k for k, s in trace.items() if is_latent(s) or s["type"] == "deterministic")
        return {name: trace[name]["value"] for name in wanted}

    def evaluate(
        self, params: Params, rows: Mapping[str, Array]
    ) -> tuple[Float[Array, " n"], Float[Array, ""], dict[str, Array]]:
        """Return potentials as NumPyro has them, log prior and values; pure JAX."""
        potentials, prior = self._potentials(params, rows), self.log_prior(params, rows)
        return potentials, prior, self.values(params, rows)

    def unconstrained(self, values: Mapping[str, Array], rows: Mapping[str, Array]) -> Params:
        """Return z from the latent sites' values; the inverse of `values`; pure JAX."""
        kept = LatentValues(list(values))
        with kept:
            self.trace(rows, lambda site: values.get(site["name"]))
        return kept.unconstrained

    def prior_means(
        self, names: Iterable[str], rows: Mapping[str, Any]
    ) -> dict[str, np.ndarray] | None:
        """Return z of the latent sites at their prior means, near 0 where there is none.

        Each is given those before it. None of a model that reads the values of rows, which a probe
        refuses.
        """

        def means() -> Params:
            kept = LatentValues(list(names))
            with kept:
                self.trace(rows, _prior_mean)
            return kept.unconstrained

        try:
            return {name: np.asarray(value) for name, value in jax.jit(means)().items()}
        except jax.errors.JAXTypeError:
            return None

    def trace(
        self, rows: Mapping[str, Any], substitute: Callable[[Site], Any] | None = None
    ) -> Trace:
        """Return NumPyro's trace of the model on some rows; none if all arguments are constants.

        ``substitute`` gives the value of a site, or None; by default random starting values.
        """
        start: Any = init_to_uniform()
        model = self._on(rows, start if substitute is None else substitute)
        return handlers.trace(model).get_trace(**self._arguments(rows))

    def _log_probs(
        self, params: Params, rows: Mapping[str, Array]
    ) -> tuple[dict[str, Array], Trace]:
        model = self._on(rows, partial(_placed, params))
        return compute_log_probs(model, (), self._arguments(rows), {}, sum_log_prob=False)

    def _on(self, rows: Mapping[str, Any], substitute: Callable[[Site], Any]) -> Messenger:
        # the key is for sites that draw and are not used, and for numpyro.prng_key()
        seeded = handlers.seed(self.model, rng_seed=0)
        substituted = handlers.substitute(seeded, substitute_fn=substitute)
        if not rows:
            return substituted
        return RowsPlate(substituted, self.plate, _n_rows(rows))

    def _arguments(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        # JAX arrays, which traced row indices can index, yet concrete where this is compiled
        with jax.ensure_compile_time_eval():
            constants = {name: _as_jax(value) for name, value in self.constants.items()}
        return {**constants, **rows}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return (
            self.model is other.model
            and self.plate == other.plate
            and self.constants.keys() == other.constants.keys()
            and all(_equal(v, other.constants[k]) for k, v in self.constants.items())
        )

    def __hash__(self) -> int:
        return hash((id(self.model), self.plate, *sorted(self.constants)))


class WeightedModel:
    """A NumPyro model whose rows carry weights: the coreset posterior as NumPyro sees it.

    Called as the user's own model. As long as nothing is observed (predictive draws) any number of
    rows will do; observed rows must be the M rows of the weights. ``names`` are all arguments of
    the model, in order, and ``inputs`` the row-wise ones. ``site`` is the log density that stands
    for all other rows: a pure JAX function of the unconstrained values of the ``latents``.
    """

    def __init__(
        self,
        program: Program,
        inputs: tuple[str, ...],
        names: tuple[str, ...],
        weights: np.ndarray,
        site: Callable[[Params], Array] | None = None,
        latents: Sequence[str] = (),
    ) -> None:
        self.__wrapped__ = program.model
        self.__name__ = getattr(program.model, "__name__", type(program.model).__name__)
        self.program, self.inputs, self.names = program, inputs, names
        self.weights, self.site, self.latents = Weights(weights), site, latents

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        rows = {name: given[name] for name in self.inputs if given.get(name) is not None}
        if not rows:
            return self.program.model(**given)
        n, complete = _n_rows(rows), len(rows) == len(self.inputs)
        known = len(self.weights.values)
        if complete and n != known:
            raise RequestError(
                f"The weighted model has {known} weights and was given {n} rows; give "
                "it the coreset's rows. For other rows call your own model, with the same draws."
            )
        kept = LatentValues(self.latents)
        with kept, RowsPlate(None, self.program.plate, n, self.weights if complete else None):
            returned = self.program.model(**given)
        if complete and self.site is not None:
            z = kept.unconstrained
            with handlers.block():  # the site may run the model once more
                density = self.site(z)
            numpyro.factor(SITE, density)
        return returned


def _placed(params: Params, site: Site) -> Any:
    """Return a latent site's value from its unconstrained one, noting the log Jacobian."""
    name = site["name"]
    if site["type"] != "sample" or name not in params:
        return None
    transform, z = biject_to(site["fn"].support), params[name]
    # inside numpyro.contrib.control_flow.scan the site is one step of the whole sequence
    step = site["infer"].get("_scan_current_index")
    if step is not None and jnp.ndim(z) > len(transform.inverse_shape(site["fn"].shape())):
        z = z[step]
    value = transform(z)
    log_det = transform.log_abs_det_jacobian(z, value)
    extra = jnp.ndim(log_det) - (jnp.ndim(value) - len(site["fn"].event_shape))
    numpyro.factor(f"_{name}_log_det", sum_rightmost(log_det, extra))
    return value


def _per_row(values: Array, dim: int) -> Float[Array, " n"]:
    axis = jnp.ndim(values) + dim
    return jnp.sum(values, axis=tuple(a for a in range(jnp.ndim(values)) if a != axis))


def _n_rows(rows: Mapping[str, Any]) -> int:
    return int(np.shape(next(iter(rows.values())))[0])


def _as_jax(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, jax.Array)) or value.dtype.kind not in "fiub":
        return value
    return jnp.asarray(value, dtype=jnp.float64 if value.dtype.kind == "f" else None)


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, (np.ndarray, jax.Array)) and isinstance(second, (np.ndarray, jax.Array)):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, (list, tuple, dict)) and isinstance(second, (list, tuple, dict)):
        (one, shape), (two, other) = jax.tree.flatten(first), jax.tree.flatten(second)
        return shape == other and all(map(_equal, one, two))
    return type(first) is type(second) and not hasattr(first, "shape") and bool(first == second)
