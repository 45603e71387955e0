"""Predictors that are read off a traced likelihood.

Every value of the program is constant, affine in φ, or neither; an affine value that enters an
operation which is not linear is a predictor. Tracing it back through entrywise operations (y − η,
−η, ...) finds the same predictor behind several values. Operations that pick entries of φ by an
index that depends on the rows give the sparse entries of B_n.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, primitives
from jaxtyping import Array, Float

from decoct.passes.predictors import Predictors
from decoct.runtime.equations import compute_equation

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


def trace_predictors(fn: Any, phi: Float[Array, " d"], rows: dict[str, Array]) -> Predictors | None:
    """Return the predictors of f(φ, rows), one value a row; None where there are no few of them."""
    return _Program.of(fn, phi, rows).predictors()


@dataclass(frozen=True, eq=False)
class _Value:
    """A value of the traced program: a constant, or computed by ``op``, or φ or a column."""

    shape: tuple[int, ...]
    constant: Any = None
    op: _Op | None = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(eq=False)
class _Op:
    """An operation of the traced program."""

    eqn: Any
    inputs: list[_Value]
    outputs: list[_Value] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        return compute_equation(self.eqn, values)


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
            inputs.append(_Value(jnp.shape(leaf)))
            given[inputs[-1]] = leaf
        ops: list[_Op] = []
        (result,) = _written_out(closed, inputs, ops)
        program = cls(inputs[0], inputs[1:], result, given, ops, jnp.shape(leaves[0])[0])
        program.ops = program._needed([result], ())
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
        return Predictors(d, shared, dense, picked, sparse, offset, potentials)

    def evaluate(self, wanted: Sequence[_Value], given: dict[_Value, Any]) -> list[Any]:
        """Return values, given some of those that they are computed from."""
        known = dict(given)
        for op in self._needed(wanted, known):
            inputs = [known.get(v, v.constant) for v in op.inputs]
            known.update(zip(op.outputs, op.run(inputs), strict=True))
        return [known.get(v, v.constant) for v in wanted]

    def _needed(self, wanted: Iterable[_Value], given: Any) -> list[_Op]:
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
        of_phi, of_rows = self._dependent([self.phi]), self._dependent(self.columns)
        affine, frontier = {self.phi}, []
        for op in self.ops:
            inputs = [v for v in op.inputs if v in of_phi]
            if not inputs:
                continue
            if all(v in affine for v in inputs) and _is_affine(op, of_phi):
                affine.update(op.outputs)
            else:
                frontier += [v for v in inputs if v in affine]
        if self.result in affine:
            frontier.append(self.result)
        values: dict[_Value, None] = {}
        for value in frontier:
            values[_trace_back(value, of_phi)] = None
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
        of_phi = self._dependent([self.phi])
        views = {self.phi}
        for op in self.ops:
            moves = op.name in RELABELLING or op.name == "convert_element_type"
            if moves and op.inputs[0] in views:
                views.update(op.outputs)
        wanted = [root.value for root in roots]
        picks, shared = [], dict.fromkeys(v for v in wanted if v in views)
        for op in self._needed(wanted, ()):
            for value in op.inputs:
                if value not in views or op.outputs[0] in views:
                    continue
                if op.name == "gather" and op.inputs[1] in of_rows and value is op.inputs[0]:
                    picks.append(op)
                else:
                    shared[value] = None
        # entries are picked from what is computed of φ alone, entry by entry
        for op in self._needed(wanted, set(shared)):
            if op in picks or op.name != "gather" or op.inputs[0] not in of_phi:
                continue
            operand = op.inputs[0]
            if op.inputs[1] in of_rows and self._is_entrywise(operand, views, of_rows):
                picks.append(op)
        stop = {v for op in picks for v in op.outputs}
        reached = {v for op in self._needed(wanted, stop) for v in op.inputs} | set(wanted)
        return [v for v in shared if v in reached], picks

    def _is_entrywise(self, value: _Value, views: set[_Value], of_rows: set[_Value]) -> bool:
        """Return whether every entry depends on at most one entry of φ, and on no row."""
        of_phi = self._dependent([self.phi])
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if one in views or one not in of_phi:
                continue
            op = one.op
            assert op is not None
            inside = [v for v in op.inputs if v in of_phi]
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


def _written_out(closed: ClosedJaxpr, inputs: list[_Value], ops: list[_Op]) -> list[_Value]:
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
            found = _written_out(eqn.params["jaxpr"], arguments, ops)
        else:
            shapes = [tuple(var.aval.shape) for var in eqn.outvars]
            found = _append(_Op(eqn, arguments), shapes, ops)
        known.update(zip(eqn.outvars, found, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _append(op: _Op, shapes: list[tuple[int, ...]], ops: list[_Op]) -> list[_Value]:
    """Append an operation; entries of exp(u) are picked as exp(entries of u)."""
    before = op.inputs[0].op if op.name == "gather" else None
    if before is not None and before.name in CURVED:
        picked = _append(_Op(op.eqn, [before.inputs[0], *op.inputs[1:]]), shapes, ops)
        op = _Op(before.eqn, picked)
    op.outputs = [_Value(shape, None, op) for shape in shapes]
    ops.append(op)
    return op.outputs


def _is_affine(op: _Op, of_phi: set[_Value]) -> bool:
    """Return whether an operation is affine in the arguments that depend on φ together."""
    inside = [i for i, v in enumerate(op.inputs) if v in of_phi]
    if op.name in ("mul", "dot_general"):
        return len(inside) == 1
    if op.name in ("div", "gather", "dynamic_slice", "pad"):
        return inside == [0]
    if op.name == "select_n":
        return 0 not in inside
    if op.name == "convert_element_type":
        return jnp.issubdtype(op.eqn.params["new_dtype"], jnp.floating)
    return op.name in LINEAR


def _trace_back(value: _Value, of_phi: set[_Value]) -> _Value:
    """Return the earliest value that another is an entrywise affine function of."""
    keeps_all = (ENTRYWISE | RELABELLING | {"broadcast_in_dim"}) - {"slice"}
    while value.op is not None and value.op.name in keeps_all:
        inside = [v for v in value.op.inputs if v in of_phi]
        if len(inside) != 1 or inside[0].size > value.size:
            break
        value = inside[0]
    return value


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
