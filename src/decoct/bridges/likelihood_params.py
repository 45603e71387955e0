"""Likelihood parameters of a model of another framework: what its rows depend on.

The potentials f(θ, rows) are traced. Every value in the program is a constant, a parameter value
(computed from θ alone) or a row value (computed from the rows). The rows depend on θ through the
parameter values that enter an operation with a row value as its result. Likelihood parameters φ are
a set of parameter values from which everything after them can be computed, with as few numbers as
possible. If u = μ + τ z are the effects of J groups, φ has the J numbers u, and neither μ and τ nor
z. If several sets have equally few numbers, decoct takes the one nearest to the rows, in which the
likelihood is nearest to a quadratic. There are two exceptions. A value computed from a single other
value of no more numbers is replaced by that one: σ = exp(z) by z, cut points by the unbounded
numbers they come from. And concatenated or sliced arrays count as their sources. Where the noise
has a scale σ, locations and 1/σ are in units of it: `bridges.noise_scale`.

This is a smallest cut between θ and the rows, found as a maximum flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from decoct.bridges.noise_scale import find_noise_scale
from decoct.bridges.traced_program import (
    CONVERSION,
    MOVES,
    Potentials,
    TracedProgram,
    needed_for,
    variables_of,
)
from decoct.errors import ModelError
from decoct.models.base import Params
from decoct.models.parameters import NoiseScale
from decoct.passes.expansions import TRACED

TRACED_ROWS = (3, 5)
"""Numbers of rows that a model is traced on: sizes that differ follow the rows."""

TOLERANCE = 1e-10
"""Largest difference by rounding: of potentials, relative to the largest, and of other values."""


@dataclass(frozen=True)
class LikelihoodParams:
    """The likelihood parameters φ of a model, on which its rows depend: a mapping name -> array.

    Attributes
    ----------
    names, shapes
        Names and shapes of the arrays, in the order of flat likelihood parameters.
    is_identity
        φ is θ, all of it.
    reason
        What of the model's structure could not be read; None where all was.
    noise
        Which of the arrays are in units of the noise; None where none are.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    reason: str | None = None
    noise: NoiseScale | None = None
    _places: tuple[int, ...] = ()
    _operations: tuple[str, ...] = ()
    _programs: dict[Any, TracedProgram] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: programs are traced again."""
        return {**self.__dict__, "_programs": {}}

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each array has."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def is_identity(self) -> bool:
        return not self._places

    def compute(self, potentials: Potentials, params: Params, rows: Mapping[str, Any]) -> Params:
        """Return φ(θ); any few rows will do. Pure JAX."""
        phi = self.in_own_units(potentials, params, rows)
        return phi if self.noise is None else self.noise.standardise(phi)

    def in_own_units(
        self, potentials: Potentials, params: Params, rows: Mapping[str, Any]
    ) -> Params:
        """Return φ(θ) before it is in units of the noise."""
        if self.is_identity:
            return params
        program = self._program(potentials, params, rows)
        values = program.compute(self._variables(program), program.given(params))
        return dict(zip(self.names, values, strict=True))

    def evaluate(
        self, potentials: Potentials, phi: Params, start: Params, rows: Mapping[str, Any]
    ) -> Float[Array, " n"]:
        """Return the potential of every encoded row from φ; pure JAX.

        ``potentials`` are those from θ; ``start`` is any θ, for its shapes.
        """
        if self.is_identity:
            return potentials(phi, rows)
        if self.noise is not None:
            phi = self.noise.undo(phi)
        program = self._program(potentials, start, rows)
        if self._fits(program):
            return self._evaluate(program, phi, rows)

        # some numbers of rows, such as one, are computed by other operations
        def one(row: Mapping[str, Array]) -> Array:
            few = {name: jnp.stack([value] * TRACED_ROWS[0]) for name, value in row.items()}
            return self._evaluate(self._program(potentials, start, few), phi, few)[0]

        return jax.vmap(one)({name: jnp.asarray(values) for name, values in rows.items()})

    def _program(
        self, potentials: Potentials, params: Params, rows: Mapping[str, Any]
    ) -> TracedProgram:
        """Return the program for arguments of these types; tracing a model takes a while."""
        leaves, structure = jax.tree.flatten((params, dict(rows)))
        key = (jax.config.read("jax_enable_x64"), structure, *map(jax.typeof, leaves))
        if key not in self._programs:
            self._programs[key] = TracedProgram(potentials, params, rows)
        return self._programs[key]

    def _evaluate(self, program: TracedProgram, phi: Params, rows: Mapping[str, Any]) -> Array:
        given = {v: phi[k] for v, k in zip(self._variables(program), self.names, strict=True)}
        given |= dict(zip(program.rows, jax.tree.leaves(rows), strict=True))
        (values,) = program.compute(program.outputs, given)
        return values

    def _variables(self, program: TracedProgram) -> list[Any]:
        """Return the variables of a program that are φ."""
        if not self._fits(program):
            raise ModelError(
                "The model no longer computes what it did when decoct read it; make the decoct "
                "model again. Which operations there are on parameters must not depend on global "
                "values, nor on the floating-point precision."
            )
        return [program.places[i] for i in self._places]

    def _fits(self, program: TracedProgram) -> bool:
        if program.operations != self._operations:
            return False
        return [np.shape(program.places[i].aval) for i in self._places] == list(self.shapes)

    def __repr__(self) -> str:
        shapes = ["scalar" if not shape else str(shape) for shape in self.shapes]
        names = [name if self.noise is None else self.noise.label(name) for name in self.names]
        cells = [("name", "shape", "size"), *zip(names, shapes, self.sizes, strict=True)]
        cells.append(("all", "", sum(self.sizes)))
        wide = [max(len(str(row[i])) for row in cells) for i in range(3)]
        lines = [f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c:>{wide[2]}}" for a, b, c in cells]
        what = "the parameters themselves" if self.is_identity else "what the rows depend on"
        if self.reason is not None:
            what = f"{what}; {self.reason}"
        return "\n".join([f"Likelihood parameters: {what}.", *lines])


def identity(params: Mapping[str, Any], reason: str | None = None) -> LikelihoodParams:
    """Return θ as likelihood parameters."""
    names = tuple(sorted(params))
    return LikelihoodParams(names, tuple(np.shape(params[name]) for name in names), reason)


def find_likelihood_params(
    potentials: Potentials,
    start: Mapping[str, Any],
    rows: Mapping[str, Any],
    values: Callable[[Params], Mapping[str, Any]],
) -> LikelihoodParams:
    """Return the likelihood parameters of a model; θ itself, with a reason, where that fails.

    The model can be evaluated at ``start`` on these encoded rows, at least five. ``values`` are the
    model's named quantities at any parameters, from which φ takes its names.
    """
    few = [{name: jnp.asarray(v)[:n] for name, v in rows.items()} for n in TRACED_ROWS]
    program, other = (TracedProgram(potentials, start, some) for some in few)
    if program.operations != other.operations or len(program.values) != len(other.values):
        return identity(
            start,
            f"the model's operations on parameters differ between {TRACED_ROWS[0]} and "
            f"{TRACED_ROWS[1]} rows",
        )
    chosen = _smallest_cut(program, other)
    if not chosen:
        return identity(start, "the log-likelihood of the rows depends on no parameter")
    if {program.values[i] for i in chosen} == set(program.leaves):
        return identity(start, program.unread)
    found = _give_names([program.values[i] for i in chosen], program, start, values)
    found = replace(found, reason=program.unread)
    found = _in_units_of_the_noise(found, potentials, start, rows)

    @jax.jit
    def both(point: Params, some: Mapping[str, Array]) -> tuple[Array, Array]:
        phi = found.compute(potentials, point, few[0])
        return found.evaluate(potentials, phi, start, some), potentials(point, some)

    for some in few:
        for point in random_points(start):
            if not _are_equal(*map(np.asarray, both(point, some))):
                return identity(start, "the potentials computed from them were not the model's")
    return found


def _in_units_of_the_noise(
    found: LikelihoodParams,
    potentials: Potentials,
    start: Mapping[str, Any],
    rows: Mapping[str, Any],
) -> LikelihoodParams:
    """Return likelihood parameters in units of the noise, where it has a scale."""
    few = {name: jnp.asarray(v) for name, v in rows.items()}
    phi = found.compute(potentials, start, few)
    n = len(next(iter(few.values())))
    many = {name: v[np.arange(TRACED) % n] for name, v in few.items()}
    evaluate = lambda phi, rows: found.evaluate(potentials, phi, start, rows)  # noqa: E731
    return replace(found, noise=find_noise_scale(evaluate, phi, many))


def _are_equal(first: np.ndarray, second: np.ndarray) -> bool:
    scale = np.max(np.abs(second), initial=0.0, where=np.isfinite(second))
    return np.allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)


def are_equal_everywhere(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether two arrays are equal at every point but for rounding and their shapes."""
    return all(
        np.size(a) == np.size(b)
        and np.allclose(np.ravel(a), np.ravel(b), rtol=TOLERANCE, atol=TOLERANCE)
        for a, b in zip(first, second, strict=True)
    )


def random_points(start: Mapping[str, Any]) -> list[Params]:
    """Return two random points about the start."""
    rng = np.random.default_rng(0)
    return [
        {name: jnp.asarray(v + rng.uniform(-0.5, 0.5, np.shape(v))) for name, v in start.items()}
        for _ in range(2)
    ]


def _smallest_cut(program: TracedProgram, other: TracedProgram) -> list[int]:
    """Return the numbers of the values that φ is made of, from programs of two numbers of rows."""
    number = {v: i for i, v in enumerate(program.values)}
    inputs: list[list[int]] = [[] for _ in number]
    moved, converted = set(), set()
    for eqn in program.of_parameters:
        before = sorted({number[v] for v in variables_of(eqn.invars) if v in number})
        for v in eqn.outvars:
            inputs[number[v]] = before
            moved |= {number[v]} if eqn.primitive.name in MOVES else set()
            converted |= {number[v]} if eqn.primitive.name == CONVERSION else set()
    sizes = [math.prod(np.shape(v.aval)) for v in program.values]
    same = [v.aval.shape == w.aval.shape for v, w in zip(program.values, other.values, strict=True)]
    may_be = [
        same[i] and i not in converted and jnp.issubdtype(v.aval.dtype, jnp.floating)
        for i, v in enumerate(program.values)
    ]
    before_all = _dominators(inputs)
    gives_way = [
        any(may_be[j] and sizes[j] <= sizes[i] for j in _chain(before_all, i))
        for i in range(len(sizes))
    ]
    # copies have a small cost, which decides between sets with equally many numbers
    most = np.iinfo(np.int32).max
    unit = min(len(sizes) + 1, (most - 1) // (sum(sizes[: len(program.leaves)]) + 1))
    costs = [
        unit * sizes[i] + (i in moved) if may_be[i] and not gives_way[i] else most
        for i in range(len(sizes))
    ]
    return _cut(inputs, costs, len(program.leaves), [number[v] for v in program.frontier])


def _dominators(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return for each value the last single value that it can be computed from; −1 for none.

    Values are computed from earlier ones, so that of two the later one cannot be it.
    """
    before: list[int] = []
    for some in inputs:
        found = some[0] if some else -1
        for j in some[1:]:
            while found != j:
                if found > j:
                    found = before[found]
                else:
                    j = before[j]
        before.append(found)
    return before


def _chain(before: Sequence[int], i: int) -> list[int]:
    found = []
    while before[i] >= 0:
        i = before[i]
        found.append(i)
    return found


def _cut(
    inputs: Sequence[Sequence[int]], costs: Sequence[int], n_leaves: int, ends: Sequence[int]
) -> list[int]:
    """Return the cheapest set of values that cuts all paths from the leaves to the ends.

    If several are equally cheap, it is the one nearest to the ends.
    """
    n, most = len(inputs), np.iinfo(np.int32).max
    source, sink = 2 * n, 2 * n + 1  # value i is an arc from 2i to 2i + 1
    arcs = [(2 * i, 2 * i + 1, cost) for i, cost in enumerate(costs)]
    arcs += [(2 * j + 1, 2 * i, most) for i, some in enumerate(inputs) for j in some]
    arcs += [(source, 2 * i, most) for i in range(n_leaves)]
    arcs += [(2 * i + 1, sink, most) for i in ends]
    begin, end, capacity = np.array(arcs).T
    shape = (2 * n + 2, 2 * n + 2)
    graph = coo_array((capacity.astype(np.int32), (begin, end)), shape=shape).tocsr()
    left = (graph - maximum_flow(graph, source, sink).flow) > 0
    reaches = np.zeros(2 * n + 2, bool)
    reaches[breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)] = True
    return [i for i in range(n) if reaches[2 * i + 1] and not reaches[2 * i]]


def _give_names(
    variables: Sequence[Any],
    program: TracedProgram,
    start: Mapping[str, Any],
    values: Callable[[Params], Mapping[str, Any]],
) -> LikelihoodParams:
    """Return likelihood parameters with names, sorted by these.

    An array is called as the part of θ that it is, or else as the model's own quantity of the same
    values, or else as a function of parts of θ: ``f(tau, z)``.
    """
    points = random_points(start)

    @jax.jit
    def compute(params: Params) -> list[Array]:
        return program.compute(variables, program.given(params))

    found = [compute(point) for point in points]
    own = [dict(point) for point in points]
    named = [{k: v for k, v in values(point).items() if k not in start} for point in points]
    names: list[str] = []
    for i, variable in enumerate(variables):
        arrays = [np.asarray(one[i]) for one in found]
        labels = (_label(arrays, some) for some in (own, named))
        label = next((one for one in labels if one is not None), None)
        names.append(_unused(label or _sources(variable, program, sorted(start)), names))
    pairs = sorted(zip(names, variables, strict=True), key=itemgetter(0))
    return LikelihoodParams(
        tuple(name for name, _ in pairs),
        tuple(v.aval.shape for _, v in pairs),
        _places=tuple(program.places.index(v) for _, v in pairs),
        _operations=program.operations,
    )


def _sources(variable: Any, program: TracedProgram, names: Sequence[str]) -> str:
    """Return a name for a value: a function of the parts of θ it is computed from."""
    used = set()
    for eqn in needed_for(program.equations, [variable], ()):
        used |= set(variables_of(eqn.invars))
    return f"f({', '.join(k for k, v in zip(names, program.leaves, strict=True) if v in used)})"


def _unused(name: str, names: Sequence[str]) -> str:
    """Return a name that is not among others: with a number after it where it is."""
    found, i = name, 2
    while found in names:
        found, i = f"{name} {i}", i + 1
    return found


def _label(arrays: Sequence[np.ndarray], known: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the name of known values that arrays are equal to, or part of, at every point."""
    for name in known[0]:
        if are_equal_everywhere(arrays, [some[name] for some in known]):
            return name
    for name in known[0]:
        pairs = zip(arrays, known, strict=True)
        parts = {_part(array, np.asarray(some[name])) for array, some in pairs}
        if len(parts) == 1 and None not in parts:
            return f"{name}[{parts.pop()}]"
    return None


def _part(array: np.ndarray, whole: np.ndarray) -> str | None:
    """Return the index, such as ``:, 0``, that takes an array's entries out of another, or None."""
    flat = whole.ravel().tolist()
    entries = {value: i for i, value in enumerate(flat)}
    if array.size == 0 or not whole.ndim or len(entries) < len(flat):
        return None
    where = np.array([entries.get(value, -1) for value in array.ravel().tolist()])
    if (where < 0).any():
        return None
    axes = [np.unique(axis) for axis in np.unravel_index(where, whole.shape)]
    block = np.ravel_multi_index(np.ix_(*axes), whole.shape).ravel()
    if not np.array_equal(block, where):
        return None
    labels = []
    for axis, length in zip(axes, whole.shape, strict=True):
        first, last = int(axis[0]), int(axis[-1])
        if len(axis) == length:
            labels.append(":")
        elif len(axis) == 1:
            labels.append(str(first))
        elif len(axis) == last - first + 1:
            labels.append(f"{first}:{last + 1}")
        else:
            return None
    return ", ".join(labels)
