"""Predictors that are read off a traced likelihood.

Every value of the program is constant, affine in φ, or neither; an affine value that enters an
operation which is not linear is a predictor. Tracing it back through entrywise operations (y − η,
−η, ...) finds the same predictor behind several values. Operations that pick entries of φ by an
index that depends on the rows give the sparse entries of B_n. A sum of quotients, u/ω − y with ω a
number of φ, is one quotient, (u − y ω)/ω, of which the numerator is affine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, primitives
from jaxtyping import Array, Float

from decoct.models.index_bounds import compute_equation
from decoct.passes.predictors import Predictors

MOST_PREDICTORS = 6
"""k above which potentials are differentiated in φ as a whole."""

ENTRYWISE = {"neg", "add", "sub", "mul", "div", "convert_element_type", "copy", "copy_p", "add_any"}
"""Operations on single entries, affine where at most one argument depends on φ."""

RELABELLING = {"reshape", "squeeze", "expand_dims", "transpose", "rev", "slice"}
"""Operations that only move entries."""

CURVED = frozenset(
    ("exp", "log", "logistic", "tanh", "sqrt", "square", "integer_pow", "log1p", "expm1", "rsqrt")
)
"""Functions of single entries that commute with picking entries."""

LINEAR = {"broadcast_in_dim", "concatenate", "cumsum", "dot_general", "dynamic_slice", "gather"}
LINEAR |= {"pad", "reduce_sum", "select_n", *ENTRYWISE, *RELABELLING}
"""Operations that are affine in the arguments named by `_is_affine`."""

SUMS = {"add", "add_any", "concatenate", "pad", "select_n", "sub"}
"""Those of them in which constants add to what depends on φ."""


def trace_predictors(fn: Any, phi: Float[Array, " d"], rows: dict[str, Array]) -> Predictors | None:
    """Return the predictors of f(φ, rows), one value a row; None where there are no few of them."""
    return _Program.of(fn, phi, rows).predictors()


@dataclass(frozen=True, eq=False)
class _Value:
    """A value of the traced program: a constant, or computed by ``op``, or φ or a column.

    ``over`` is (u, ω) of a value u/ω of which ω is one number that depends on φ.
    """

    shape: tuple[int, ...]
    constant: Any = None
    op: _Op | None = None
    of_phi: bool = False
    over: tuple[_Value, _Value] | None = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(eq=False)
class _Op:
    """An operation of the traced program."""

    name: str
    run: Callable[[Sequence[Any]], Sequence[Any]]
    inputs: list[_Value]
    params: Mapping[str, Any] = field(default_factory=dict)
    outputs: list[_Value] = field(default_factory=list)

    def on(self, inputs: list[_Value]) -> _Op:
        """Return the same operation on other values."""
        return replace(self, inputs=inputs, outputs=[])


class _Root(NamedTuple):
    """A value that is one predictor or several, and whether it differs between rows."""

    value: _Value
    width: int
    of_rows: bool


@dataclass
class _Program:
    """The operations of f(φ, rows), calls of functions written out."""

    phi: _Value
    columns: list[_Value]
    result: _Value
    given: dict[_Value, Any]
    ops: list[_Op]
    n: int

    @classmethod
    def of(cls, fn: Any, phi: Array, rows: dict[str, Array]) -> _Program:
        closed = jax.make_jaxpr(fn)(phi, rows)
        leaves = jax.tree.leaves(rows)
        given: dict[_Value, Any] = {}
        inputs = []
        for leaf in (phi, *leaves):
            inputs.append(_Value(jnp.shape(leaf), of_phi=leaf is phi))
            given[inputs[-1]] = leaf
        ops: list[_Op] = []
        (result,) = _write_out(closed, inputs, ops)
        program = cls(inputs[0], inputs[1:], result, given, ops, jnp.shape(leaves[0])[0])
        program.ops = program._find_needed([result], ())
        return program

    def predictors(self) -> Predictors | None:
        """Return the predictors with their coefficients, or None."""
        roots = self._roots()
        if roots is None:
            return None
        views, picks = self._inputs(roots)
        shared, dense, picked, sparse, offset = self._coefficients(roots, views, picks)
        given = dict(self.given)

        def potentials(eta: Float[Array, "n k"]) -> Float[Array, " n"]:
            values, begin = dict(given), 0
            for root in roots:
                part = eta[:, begin : begin + root.width]
                values[root.value] = _as_root(part, root)
                begin += root.width
            return self.evaluate([self.result], values)[0]

        d = self.phi.shape[0]
        pairs = _pairs(picks, self.n)
        return Predictors(d, shared, dense, picked, sparse, offset, potentials, pairs)

    def evaluate(self, wanted: Sequence[_Value], given: dict[_Value, Any]) -> list[Any]:
        """Return values, given some of those that they are computed from."""
        known = dict(given)
        for op in self._find_needed(wanted, known):
            inputs = [known.get(v, v.constant) for v in op.inputs]
            known.update(zip(op.outputs, op.run(inputs), strict=True))
        return [known.get(v, v.constant) for v in wanted]

    def _find_needed(self, wanted: Iterable[_Value], given: Any) -> list[_Op]:
        """Return the operations that lead from what is given to what is wanted, in order."""
        waiting, needed = list(wanted), set()
        while waiting:
            value = waiting.pop()
            if value in given or value.op is None or value.op in needed:
                continue
            needed.add(value.op)
            waiting.extend(value.op.inputs)
        return [op for op in self.ops if op in needed]

    def _dependent(self, origins: Iterable[_Value], but: Any = ()) -> set[_Value]:
        """Return the values that depend on some, not through others."""
        found = set(origins)
        for op in self.ops:
            if any(v in found for v in op.inputs):
                found.update(v for v in op.outputs if v not in but)
        return found

    def _roots(self) -> list[_Root] | None:
        """Return the predictors; None where φ enters in other ways."""
        of_rows = self._dependent(self.columns)
        affine, frontier = {self.phi}, []
        for op in self.ops:
            inputs = [v for v in op.inputs if v.of_phi]
            if not inputs:
                continue
            if all(v in affine for v in inputs) and _is_affine(op):
                affine.update(op.outputs)
            else:
                frontier += [v for v in inputs if v in affine]
        if self.result in affine:
            frontier.append(self.result)
        values: dict[_Value, None] = {}
        for value in frontier:
            values[_trace_back(value)] = None
        roots = [self._root(value, value in of_rows) for value in values]
        if not roots or None in roots:
            return None
        known = [root for root in roots if root is not None]
        known.sort(key=lambda root: root.of_rows)  # stable: those that all rows share come first
        through = {root.value for root in known}
        left = self._dependent([self.phi] if self.phi not in through else [], but=through)
        if sum(root.width for root in known) > MOST_PREDICTORS or self.result in left - through:
            return None
        return known

    def _root(self, value: _Value, of_rows: bool) -> _Root | None:
        if not of_rows:
            return _Root(value, value.size, False) if value.size <= MOST_PREDICTORS else None
        if self.n not in value.shape or value.size > self.n * MOST_PREDICTORS:
            return None
        return _Root(value, value.size // self.n, True)

    def _inputs(self, roots: list[_Root]) -> tuple[list[_Value], list[_Op]]:
        """Return where φ enters the predictors: parts that all rows share, and picked entries."""
        of_rows = self._dependent(self.columns)
        views = {self.phi}
        for op in self.ops:
            moves = op.name in RELABELLING or op.name == "convert_element_type"
            if moves and op.inputs[0] in views:
                views.update(op.outputs)
        wanted = [root.value for root in roots]
        picks, shared = [], dict.fromkeys(v for v in wanted if v in views)
        for op in self._find_needed(wanted, ()):
            for value in op.inputs:
                if value not in views or op.outputs[0] in views:
                    continue
                if op.name == "gather" and op.inputs[1] in of_rows and value is op.inputs[0]:
                    picks.append(op)
                else:
                    shared[value] = None
        # entries are picked from what is computed of φ alone, entry by entry
        for op in self._find_needed(wanted, set(shared)):
            if op in picks or op.name != "gather" or not op.inputs[0].of_phi:
                continue
            operand = op.inputs[0]
            if op.inputs[1] in of_rows and self._is_entrywise(operand, views, of_rows):
                picks.append(op)
        stop = {v for op in picks for v in op.outputs}
        reached = {v for op in self._find_needed(wanted, stop) for v in op.inputs} | set(wanted)
        return [v for v in shared if v in reached], picks

    def _is_entrywise(self, value: _Value, views: set[_Value], of_rows: set[_Value]) -> bool:
        """Return whether every entry depends on at most one entry of φ, and on no row."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if one in views or not one.of_phi:
                continue
            op = one.op
            assert op is not None
            inside = [v for v in op.inputs if v.of_phi]
            moves = op.name in RELABELLING | {"concatenate", "pad", "broadcast_in_dim"}
            single = op.name in ENTRYWISE and len(inside) == 1
            if one in of_rows or not (moves or single):
                return False
            waiting += inside
        return True

    def _coefficients(
        self, roots: list[_Root], views: list[_Value], picks: list[_Op]
    ) -> tuple[Any, ...]:
        """Return places and coefficients of φ in the predictors; see `Predictors`."""
        d, n = self.phi.shape[0], self.n
        numbers = jnp.arange(float(d))

        def computed(values: Sequence[_Value], phi: Array) -> list[Array]:
            return self.evaluate(values, {**self.given, self.phi: phi})

        operands = [op.outputs[0] for op in picks]
        zero, one, place = (computed(operands, phi) for phi in (jnp.zeros(d), jnp.ones(d), numbers))
        factors = [_rows_first(b - a, n) for a, b in zip(zero, one, strict=True)]
        places = [_rows_first(c - a, n) for a, c in zip(zero, place, strict=True)]
        factor = jnp.concatenate([jnp.zeros((n, 0)), *factors], axis=1)
        divisor = jnp.where(factor == 0.0, 1.0, factor)
        picked = jnp.concatenate([jnp.zeros((n, 0)), *places], axis=1) / divisor
        shared = [jnp.ravel(v) for v in computed(views, numbers)]
        shared_places = jnp.concatenate([jnp.zeros(0), *shared])

        def eta(parts: list[Array], entries: list[Array]) -> Float[Array, "n k"]:
            known = {**self.given, **dict(zip(views, parts, strict=True))}
            known.update(zip(operands, entries, strict=True))
            found = self.evaluate([root.value for root in roots], known)
            return jnp.concatenate(
                [_from_root(v, root, n) for v, root in zip(found, roots, strict=True)], axis=1
            )

        base = [jnp.zeros(v.shape) for v in views]
        offset = eta(base, zero)
        sizes = [v.size for v in views]

        def along(direction: Array) -> Float[Array, "n k"]:
            parts = jnp.split(direction, np.cumsum(sizes)[:-1]) if views else []
            moved = [jnp.reshape(p, v.shape) for p, v in zip(parts, views, strict=True)]
            still = [jnp.zeros_like(v) for v in zero]
            return jax.jvp(eta, (base, zero), (moved, still))[1]

        p, dense = sum(sizes), jnp.zeros((*offset.shape, 0))
        if p:
            dense = jax.vmap(along)(jnp.eye(p)).transpose(1, 2, 0)
        columns = []
        for which, entries in enumerate(zero):
            for j in range(entries.size // n):
                unit = jnp.zeros((n, entries.size // n)).at[:, j].set(1.0)
                unit = _rows_back(unit, entries.shape)
                moved = [jnp.zeros_like(v) if i != which else unit for i, v in enumerate(zero)]
                still = [jnp.zeros_like(v) for v in base]
                columns.append(jax.jvp(eta, (base, zero), (still, moved))[1])
        sparse = jnp.stack(columns, axis=2) if columns else jnp.zeros((*offset.shape, 0))
        sparse = sparse * factor[:, None]
        return (
            jnp.round(shared_places).astype(jnp.int32),
            dense,
            jnp.round(picked).astype(jnp.int32),
            sparse,
            offset,
        )


def _write_out(closed: ClosedJaxpr, inputs: list[_Value], ops: list[_Op]) -> list[_Value]:
    """Append the operations of a program, those of functions that it calls included."""
    jaxpr: Any = closed.jaxpr
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, constant in zip(jaxpr.constvars, closed.consts, strict=True):
        known[var] = _Value(jnp.shape(constant), constant)

    def value(atom: Any) -> _Value:
        return _Value(jnp.shape(atom.val), atom.val) if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        arguments = [value(atom) for atom in eqn.invars]
        if eqn.primitive is primitives.jit_p:
            found = _write_out(eqn.params["jaxpr"], arguments, ops)
        else:
            shapes = [tuple(var.aval.shape) for var in eqn.outvars]
            run = partial(compute_equation, eqn)
            found = _append(_Op(eqn.primitive.name, run, arguments, eqn.params), shapes, ops)
        known.update(zip(eqn.outvars, found, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _append(op: _Op, shapes: list[tuple[int, ...]], ops: list[_Op]) -> list[_Value]:
    """Append an operation.

    Entries of exp(u) are picked as exp(entries of u), and sums of u/ω are (sums of u)/ω.
    """
    before = op.inputs[0].op if op.name == "gather" else None
    if before is not None and before.name in CURVED:
        picked = _append(op.on([before.inputs[0], *op.inputs[1:]]), shapes, ops)
        op = before.on(picked)
    inside = [v for v in op.inputs if v.of_phi]
    numbers = {v.over[1] if v.over else None for v in inside}
    number = numbers.pop() if len(numbers) == 1 else None
    if number is not None and _is_affine(op):
        is_sum = op.name in SUMS
        skipped = op.inputs[:1] if op.name == "select_n" else []

        def numerator(v: _Value) -> _Value:
            if v.over:
                return v.over[0]
            return _times(v, number, ops) if is_sum and v not in skipped else v

        found = _append(op.on([numerator(v) for v in op.inputs]), shapes, ops)
        return [_over(v, number, ops) for v in found]
    op.outputs = [_Value(shape, None, op, bool(inside), _quotient(op)) for shape in shapes]
    ops.append(op)
    return op.outputs


def _times(value: _Value, number: _Value, ops: list[_Op]) -> _Value:
    op = _Op("mul", lambda given: [given[0] * jnp.reshape(given[1], ())], [value, number])
    return _append(op, [value.shape], ops)[0]


def _over(value: _Value, number: _Value, ops: list[_Op]) -> _Value:
    op = _Op("div", lambda given: [given[0] / jnp.reshape(given[1], ())], [value, number])
    return _append(op, [value.shape], ops)[0]


def _quotient(op: _Op) -> tuple[_Value, _Value] | None:
    """Return u and ω of the operation u/ω, if ω is one number and both depend on φ."""
    if op.name != "div" or not all(v.of_phi for v in op.inputs):
        return None
    value, by = op.inputs
    moves = RELABELLING | {"broadcast_in_dim"}
    while by.op is not None and by.op.name in moves and by.op.inputs[0].size <= by.size:
        by = by.op.inputs[0]
    return (value, by) if by.size == 1 else None


def _is_affine(op: _Op) -> bool:
    """Return whether an operation is affine in the arguments that depend on φ together."""
    inside = [i for i, v in enumerate(op.inputs) if v.of_phi]
    if op.name in ("mul", "dot_general"):
        return len(inside) == 1
    if op.name in ("div", "gather", "dynamic_slice", "pad"):
        return inside == [0]
    if op.name == "select_n":
        return 0 not in inside
    if op.name == "convert_element_type":
        return jnp.issubdtype(op.params["new_dtype"], jnp.floating)
    return op.name in LINEAR


def _trace_back(value: _Value) -> _Value:
    """Return the earliest value that another is an entrywise affine function of."""
    keeps_all = (ENTRYWISE | RELABELLING | {"broadcast_in_dim"}) - {"slice"}
    while value.op is not None and value.op.name in keeps_all:
        inside = [v for v in value.op.inputs if v.of_phi]
        if len(inside) != 1 or inside[0].size > value.size:
            break
        value = inside[0]
    return value


def _pairs(picks: Sequence[_Op], n: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of columns of `Predictors.picked` that are picked by the same index.

    No column is in two pairs.
    """
    columns: dict[Any, list[int]] = {}
    by = [_expression(op.inputs[1]) for op in picks for _ in range(op.outputs[0].size // n)]
    for place, index in enumerate(by):
        columns.setdefault(index, []).append(place)
    return tuple(
        pair for places in columns.values() for pair in zip(places[::2], places[1::2], strict=False)
    )


def _expression(value: _Value) -> Any:
    """Return what a value is computed by, but for single numbers; so u[g, 0] is like u[g, 1]."""
    if value.op is None:
        is_number = value.constant is not None and np.size(value.constant) == 1
        return "number" if is_number else id(value)
    op = value.op
    inputs = tuple(_expression(v) for v in op.inputs)
    return op.name, str(op.params), op.outputs.index(value), inputs


def _rows_first(values: Array, n: int) -> Float[Array, "n K"]:
    return jnp.moveaxis(values, values.shape.index(n), 0).reshape(n, -1)


def _rows_back(values: Float[Array, "n K"], shape: tuple[int, ...]) -> Array:
    """Undo `_rows_first` of an array of this shape."""
    axis = shape.index(len(values))
    others = shape[:axis] + shape[axis + 1 :]
    return jnp.moveaxis(values.reshape(len(values), *others), 0, axis)


def _from_root(value: Array, root: _Root, n: int) -> Float[Array, "n j"]:
    if root.of_rows:
        return _rows_first(value, n)
    return jnp.broadcast_to(jnp.ravel(value)[None], (n, root.width))


def _as_root(part: Float[Array, "n j"], root: _Root) -> Array:
    shape = root.value.shape
    return _rows_back(part, shape) if root.of_rows else part[0].reshape(shape)
