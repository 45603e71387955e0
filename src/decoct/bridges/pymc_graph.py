"""A PyMC model's log density as a pure JAX function of parameters and rows.

PyMC writes the density as PyTensor graphs in which data are shared variables:

    f_n(z)     = Σ over observed variables of log p(y_n | T(z), x_n), all their other axes summed
    log π₀(z)  = Σ over free variables of log p(T(z)) + log|dT/dz|, + Σ over potentials

The rows' shared variables become inputs before the graph is translated; other shared variables
become constants.
"""

from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from jaxtyping import Array, Float
from pymc.distributions import multivariate
from pytensor import function  # pyright: ignore[reportPrivateImportUsage]
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.math import softplus
from pytensor.tensor.basic import ARange, cast, constant

from decoct.bridges.arguments import describe_constant
from decoct.bridges.probing import quoted
from decoct.bridges.pymc_layout import ModelData
from decoct.bridges.rewrites import PackageForm, rewrite
from decoct.errors import ModelError
from decoct.models.base import Params

BACKEND = "pytensor.link.jax.dispatch"
"""PyTensor's translation to JAX."""


class Graph:
    """PyTensor outputs of named inputs, translated to JAX when first called.

    Pickles as the graph, without what was translated. No variable of it is shared. With
    ``check_bounds`` impossible parameters give −∞, as in PyMC's own functions.
    """

    def __init__(
        self, inputs: Mapping[str, Any], outputs: Sequence[Any], check_bounds: bool = True
    ) -> None:
        self.names = tuple(inputs)
        mode: Any = get_mode("JAX")
        if check_bounds:
            mode = mode.including("local_check_parameter_to_ninf_switch")
        fgraph = FunctionGraph(inputs=list(inputs.values()), outputs=list(outputs), clone=True)
        load_backend()
        mode.optimizer.rewrite(fgraph)
        _without_checks.rewrite(fgraph)
        _wide_ranges.rewrite(fgraph)
        self.fgraph = fgraph
        self._translated: Callable[..., Any] | None = None

    def __call__(self, *values: Mapping[str, Any]) -> list[Array]:
        """Return the outputs at named values; pure JAX, in float64 if that is on."""
        if self._translated is None:
            self._translated = _to_jax(self.fgraph)
        given = {name: jnp.asarray(v) for one in values for name, v in one.items()}
        return list(self._translated(*(given[name] for name in self.names)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_translated": None}


class Program:
    """The graphs of a model: its density and values, and back to unconstrained parameters.

    Equal to its copies, such as those made by pickle.

    Attributes
    ----------
    density, inverse
        From unconstrained parameters and rows; from free variables' values and rows.
    free, observed, named
        Names of the free variables, the observed ones, and the free and deterministic ones.
    constants
        Name of other ``pm.Data`` -> what identifies its values.
    """

    def __init__(self, model: pm.Model, layout: ModelData) -> None:
        self.token = uuid.uuid4().hex
        self.free = tuple(rv.name for rv in model.free_RVs)
        self.observed = tuple(rv.name for rv in model.observed_RVs)
        densities: Any = model.logp(vars=model.observed_RVs, sum=False)
        potentials = [per_row(density) for density in densities]
        _check_one_value_a_row(self.observed, potentials)
        prior = model.logp(vars=[*model.free_RVs, *model.potentials])
        values = {v.name: v for v in model.unobserved_value_vars}
        self.named = (*self.free, *(d.name for d in model.deterministics))
        self.constants = tuple(
            (name, describe_constant(model[name].get_value(borrow=True)))
            for name in layout.constants
        )
        outputs = [*potentials, prior, *(values[name] for name in self.named)]
        inputs, replaced = _rows_as_inputs(model, layout)
        parameters = {rv.name: model.rvs_to_values[rv] for rv in model.free_RVs}
        bounds = model.check_bounds
        self.density = Graph({**parameters, **inputs}, _replaced(outputs, replaced), bounds)
        constrained, back = _unconstraining(model)
        self.inverse = Graph({**constrained, **inputs}, _replaced(back, replaced), bounds)

    def potentials(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return f_n(z) for every row, rewritten to be fast and exact; pure JAX."""
        fast = rewrite(lambda *given: self.evaluate(*given)[0], [_make_log_sigmoid_form()])
        return fast(params, dict(rows))

    def log_prior(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, ""]:
        """Return log π₀(z), Jacobians included; any rows will do."""
        return self.evaluate(params, rows)[1]

    def values(self, params: Params, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return free and deterministic variables on their natural scale; pure JAX."""
        return self.evaluate(params, rows)[2]

    def evaluate(
        self, params: Params, rows: Mapping[str, Array]
    ) -> tuple[Float[Array, " n"], Float[Array, ""], dict[str, Array]]:
        """Return potentials as PyMC has them, log prior and values; pure JAX."""
        outputs, k = self.density(params, rows), len(self.observed)
        n = np.shape(next(iter(rows.values())))[0]
        for name, potential in zip(self.observed, outputs, strict=False):
            if np.shape(potential) != (n,):
                raise ModelError(
                    f"Observed variable '{name}' has {np.size(potential)} values when the model is "
                    f"given {n} rows: its data do not follow the rows. Put every row-wise array in "
                    "pm.Data, with the rows on the first axis."
                )
        total = sum(outputs[1:k], start=outputs[0])
        return total, outputs[k], dict(zip(self.named, outputs[k + 1 :], strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.token == other.token

    def __hash__(self) -> int:
        return hash(self.token)

    def unconstrained(self, values: Mapping[str, Array], rows: Mapping[str, Array]) -> Params:
        """Return z from the free variables' values; the inverse of `evaluate`; pure JAX."""
        return dict(zip(self.free, self.inverse(values, rows), strict=True))


def latent_shapes(
    model: pm.Model, layout: ModelData, tables: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of the unconstrained free variables, with each of some tables."""
    inputs, replaced = _rows_as_inputs(model, layout)
    shapes = [_forward(model, rv, rv).shape for rv in model.free_RVs]
    compiled = function(
        list(inputs.values()),
        _replaced(shapes, replaced),
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    names = [rv.name for rv in model.free_RVs]
    found = [compiled(*(table[name] for name in inputs)) for table in tables]
    return [{k: tuple(int(n) for n in v) for k, v in zip(names, one, strict=True)} for one in found]


def constants_of_length(graph: Graph, n_rows: int) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays in a graph that have n_rows entries along an axis."""
    arrays = [v for v in ancestors(graph.fgraph.outputs) if isinstance(v, Constant)]
    shapes = [np.shape(v.data) for v in arrays if isinstance(v.data, np.ndarray)]
    return sorted({shape for shape in shapes if n_rows in shape})


def _rows_as_inputs(model: pm.Model, layout: ModelData) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Return an input for each row-wise datum, and what stands for each shared variable."""
    inputs = {name: model[name].type(name=name) for name in layout.rows}
    replaced = {model[name]: variable for name, variable in inputs.items()}
    n = inputs[layout.rows[0]].shape[0]
    for name in layout.dims:
        length = model.dim_lengths.get(name)
        if isinstance(length, SharedVariable):
            replaced[length] = cast(n, length.dtype)
    return inputs, replaced


def _replaced(outputs: Sequence[Any], replaced: Mapping[Any, Any]) -> list[Any]:
    """Return outputs of inputs and constants alone."""
    others = {v for v in graph_inputs(list(outputs)) if isinstance(v, SharedVariable)}
    frozen = {
        v: constant(v.get_value(), name=v.name)
        for v in others - replaced.keys()
        if hasattr(v.type, "ndim")
    }
    return clone_replace(list(outputs), replace={**replaced, **frozen})


def _unconstraining(model: pm.Model) -> tuple[dict[str, Any], list[Any]]:
    """Return inputs for the free variables' values, and their unconstrained values."""
    inputs = {rv.name: rv.type(name=rv.name) for rv in model.free_RVs}
    given = {rv: inputs[rv.name] for rv in model.free_RVs}
    back = [_forward(model, rv, inputs[rv.name]) for rv in model.free_RVs]
    # a bound may be another free variable; the variable itself is only replaced by its input
    return inputs, clone_replace(back, replace=given)


def _forward(model: pm.Model, rv: Any, value: Any) -> Any:
    transform = model.rvs_to_transforms[rv]
    return value if transform is None else transform.forward(value, *rv.owner.inputs)


def per_row(density: Any) -> Any:
    """Return a log density summed over all axes but the first, that of the rows."""
    return density.sum(axis=tuple(range(1, density.ndim))) if density.ndim > 1 else density


def _check_one_value_a_row(names: Sequence[str], potentials: Sequence[Any]) -> None:
    for name, potential in zip(names, potentials, strict=True):
        if potential.ndim == 0:
            raise ModelError(
                f"Observed variable '{name}' has one log density for all its rows together (a "
                "multivariate, Gaussian process or time series response), and a coreset needs one "
                "per row. Put the independent units on its first axis, or give it independent rows."
            )


def _to_jax(fgraph: FunctionGraph) -> Callable[..., Any]:
    translate = load_backend()
    check: Any = getattr(multivariate, "PosDefMatrix", None)  # PyMC 6 has none
    if check is not None and translate.dispatch(check) is translate.dispatch(object):
        translate.register(check)(_positive_definite)
    try:
        # constants of the graph are turned into arrays, also while something is being compiled
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            return translate(fgraph)
    except NotImplementedError as error:
        raise ModelError(
            "PyTensor cannot translate this model to JAX, in which decoct computes: "
            f"{quoted(error).rstrip('.')}. Write that part with other operations, or register a "
            "translation with pytensor.link.jax.dispatch.jax_funcify."
        ) from error


def _make_log_sigmoid_form() -> PackageForm:
    """Return how PyTensor writes log σ(−x): as the negative of its softplus(x)."""
    translated = load_backend()(softplus)
    return PackageForm(lambda x: -translated(x), (np.zeros(2),), lambda x: (-x, 0.0))


def load_backend() -> Any:
    """Return PyTensor's ``jax_funcify``; keep the flag jax_enable_x64 that loading it sets."""
    if BACKEND not in sys.modules:
        # in a thread of its own, where no scoped switch hides the flag
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_load_with_flag_kept).result()
    return sys.modules[BACKEND].jax_funcify


def _load_with_flag_kept() -> None:
    flag = jax.config.read("jax_enable_x64")
    try:
        importlib.import_module(BACKEND)
    finally:
        jax.config.update("jax_enable_x64", flag)


def _positive_definite(op: Any, **options: Any) -> Callable[..., Array]:
    def positive_definite(matrix: Array, *rest: Any) -> Array:
        return jnp.isfinite(jnp.linalg.cholesky(matrix)).all()

    return positive_definite


@node_rewriter(None)
def _without_check(fgraph: FunctionGraph, node: Any) -> list[Any] | bool:
    return [node.inputs[0]] if isinstance(node.op, CheckAndRaise) else False


_without_checks = in2out(_without_check)


@node_rewriter([ARange])
def _wide_range(fgraph: FunctionGraph, node: Any) -> list[Any] | bool:
    """Widen the limits of a range: JAX would count to the number of rows in PyTensor's int8."""
    inputs: list[Any] = node.inputs
    narrow = [isinstance(v, Constant) and v.data.dtype != node.op.dtype for v in inputs]
    if not any(narrow):
        return False
    pairs = zip(inputs, narrow, strict=True)
    limits = [constant(v.data, dtype=node.op.dtype) if change else v for v, change in pairs]
    return [node.op(*limits)]


_wide_ranges = in2out(_wide_range)
