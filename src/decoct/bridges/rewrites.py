"""Log densities of other packages, rewritten so that a pass over the data is fast and exact.

A function is traced and then computed operation by operation; some operations are replaced:

    log(exp(x))                 x              a Poisson rate comes as exp(x)
    xlogy(a, exp(x))            a x            0 where a = 0
    exp(x) = 0                  x = −∞         also where exp(x) is 0 in float64
    0 ≤ eˣ, 0 ≤ σ(x) ≤ 1        true           PyMC checks it at every row and draw
    (A v[:, None])[:, 0]        A v            PyTensor multiplies matrices alone
    a v[i]                      (a v)[i]       see `bridges.picks`
    a package's log σ(x)        log σ(x)       as `decoct.models.logistic` computes it

XLA compiles Bernoulli densities with logits, as the packages write them, to code that takes three
to four times as long: choices at every draw keep it from vector code.
`PackageForm` says how a package writes one; choices around log σ are moved into its argument or to
an addend that depends on rows alone. Where |x| is so large that exp(x) is 0 or ∞, values differ
from the package's: x is what was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal, primitives
from jaxtyping import Array

from decoct.bridges.picks import Term, known_number, move_before_pick
from decoct.models.index_bounds import compute_equation
from decoct.models.logistic import log_sigmoid

LOG_SIGMOID = "log_sigmoid"
"""Stands for the primitive of a term ``log_sigmoid(argument) + addend``."""

LAYOUT = ("shape", "broadcast_dimensions", "sharding", "weak_type")
"""Parameters of operations that may differ between a package's form and the function."""


class PackageForm(NamedTuple):
    """How a package writes log σ(argument) + addend.

    Attributes
    ----------
    written
        The package's own function.
    examples
        Arrays for it, of the types to match; their shape does not matter.
    meant
        The same arguments -> argument and addend; the addend is 0 or −∞.
    """

    written: Callable[..., Array]
    examples: tuple[Any, ...]
    meant: Callable[..., tuple[Any, Any]]


def rewrite(fn: Callable[..., Any], forms: Sequence[PackageForm] = ()) -> Callable[..., Any]:
    """Return a pure JAX function of pytrees with operations replaced, log σ in these forms too."""

    def wrapped(*arguments: Any) -> Any:
        known = [_Known(form, *_trace(form.written, form.examples)) for form in forms]
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        terms = _evaluate(closed, [Term(leaf) for leaf in jax.tree.leaves(arguments)], known)
        return jax.tree.unflatten(jax.tree.structure(shape), [term.value for term in terms])

    return wrapped


class _Known(NamedTuple):
    """A package's form, as terms of its arguments."""

    form: PackageForm
    arguments: list[Term]
    result: Term


def _trace(fn: Callable[..., Array], examples: tuple[Any, ...]) -> tuple[list[Term], Term]:
    arguments = [Term(np.asarray(example)) for example in examples]
    (result,) = _evaluate(jax.make_jaxpr(fn)(*examples), arguments, ())
    return arguments, result


def _evaluate(closed: ClosedJaxpr, given: Sequence[Term], known: Sequence[_Known]) -> list[Term]:
    """Return the results of a program and of the calls it makes; loops and branches stay."""
    jaxpr: Any = closed.jaxpr
    terms = dict(zip(jaxpr.constvars, map(Term, closed.consts), strict=True))
    terms |= dict(zip(jaxpr.invars, given, strict=True))

    def term(atom: Any) -> Term:
        return Term(atom.val) if isinstance(atom, Literal) else terms[atom]

    for eqn in jaxpr.eqns:
        inputs = [term(atom) for atom in eqn.invars]
        with eqn.ctx.manager:
            terms |= dict(zip(eqn.outvars, _compute(eqn, inputs, known), strict=True))
    return [term(atom) for atom in jaxpr.outvars]


def _compute(eqn: Any, inputs: list[Term], known: Sequence[_Known]) -> list[Term]:
    """Return what an operation gives."""
    if eqn.primitive is primitives.jit_p:
        return _evaluate(eqn.params["jaxpr"], inputs, known)
    replaced = _replace(eqn, inputs)
    if replaced is not None:
        return [replaced]
    values = _compute_values(eqn, [one.value for one in inputs])
    if eqn.primitive.multiple_results:
        return [Term(value) for value in values]
    made = Term(values[0], eqn.primitive.name, eqn.params, inputs)
    return [next((found for one in known if (found := _recognise(made, one))), made)]


def _compute_values(eqn: Any, inputs: list[Any]) -> list[Any]:
    """Return values of an operation; of known numbers they are known, too."""
    numbers = [*inputs, *(v.aval for v in eqn.outvars)]
    if any(isinstance(one, Tracer) or np.ndim(one) for one in numbers):
        return compute_equation(eqn, inputs)
    with jax.ensure_compile_time_eval():
        return compute_equation(eqn, inputs)


def _replace(eqn: Any, inputs: list[Term]) -> Term | None:
    """Return what stands for an operation, or None."""
    if not inputs:
        return None
    first = inputs[0]
    match eqn.primitive.name:
        case "log" if _is_real_exp(first):
            return first.inputs[0]
        case "custom_jvp_call" if _find_source(eqn) == _xlogy() and _is_real_exp(inputs[1]):
            return Term(_multiply(first.value, inputs[1].inputs[0].value))
        case "eq" if _is_real_exp(first) and _is_constant(inputs[1], 0.0):
            return Term(first.inputs[0].value == -jnp.inf)
        case "ge" if (first.name == "logistic" or _is_real_exp(first)) and _is_constant(
            inputs[1], 0.0
        ):
            return _make_true(np.shape(first.value))
        case "le" if first.name == "logistic" and _is_constant(inputs[1], 1.0):
            return _make_true(np.shape(first.value))
        case "reduce_and" if eqn.outvars[0].aval.dtype == bool and _is_constant(first, True):
            # XLA would add them up as it compiles
            return _make_true(np.shape(eqn.outvars[0].aval))
        case "reshape" | "squeeze" if first.name == "dot_general":
            return _multiply_by_vector(first, np.shape(eqn.outvars[0].aval))
        case "select_n" if len(inputs) == 3:
            return _merge_choice(*inputs)
    return move_before_pick(eqn.primitive.name, eqn.params, inputs)


def _is_real_exp(term: Term) -> bool:
    return term.name == "exp" and jnp.issubdtype(term.value.dtype, jnp.floating)


def _is_constant(term: Term, wanted: Any) -> bool:
    """Return whether a term is one known number, repeated or not."""
    number = known_number(term)
    return number is not None and number == wanted


def _make_true(shape: tuple[int, ...]) -> Term:
    return Term(jnp.ones(shape, bool), "broadcast_in_dim", inputs=(Term(np.True_),))


def _find_source(eqn: Any) -> str:
    """Return the name, file and line of a function with a derivative of its own."""
    return eqn.params["call_jaxpr"].jaxpr.debug_info.func_src_info


@cache
def _xlogy() -> str:
    """Return the source of JAX's own xlogy, of whose name there may be others."""
    made: Any = jax.make_jaxpr(jax.scipy.special.xlogy)(1.0, 1.0)
    return next(_find_source(eqn) for eqn in made.eqns if "call_jaxpr" in eqn.params)


def _multiply(a: Any, x: Any) -> Any:
    """Return a x, 0 where a is 0, in vector code: a choice for every x would take twice as long."""
    most = jnp.where(a == 0.0, jnp.finfo(x.dtype).max, jnp.inf)
    return a * jnp.clip(x, -most, most)


def _multiply_by_vector(product: Term, shape: tuple[int, ...]) -> Term | None:
    """Return A v for the vector of A v[:, None], or None."""
    matrix, column = product.inputs
    if column.name not in ("reshape", "broadcast_in_dim") or len(shape) != 1:
        return None
    vector = column.inputs[0].value
    is_matrix = np.ndim(matrix.value) == 2
    is_product = product.params["dimension_numbers"] == (((1,), (0,)), ((), ()))
    is_column = np.shape(column.value) == (*np.shape(vector), 1)
    if not (is_matrix and is_product and is_column):
        return None
    return Term(jnp.matmul(matrix.value, vector).astype(product.value.dtype))


def _make_log_sigmoid(argument: Any, addend: Any) -> Term:
    terms = (Term(argument), Term(addend))
    return Term(log_sigmoid(argument) + addend, LOG_SIGMOID, inputs=terms)


def _merge_choice(which: Term, no: Term, yes: Term) -> Term | None:
    """Return a choice between two log σ, or between one and −∞, as one log σ; else None."""
    (x, addend), (other_x, other_addend) = _split(yes), _split(no)
    if addend is None or other_addend is None or (x is None and other_x is None):
        return None
    if x is None or other_x is None:
        argument = other_x if x is None else x
    else:
        argument = jnp.where(which.value, x, other_x)
    return _make_log_sigmoid(argument, jnp.where(which.value, addend, other_addend))


def _split(term: Term) -> tuple[Any, Any]:
    """Return argument and addend of log σ; None and −∞ of −∞; None and None of anything else."""
    if term.name == LOG_SIGMOID:
        return term.inputs[0].value, term.inputs[1].value
    return None, (-jnp.inf if _is_constant(term, -np.inf) else None)


def _recognise(term: Term, known: _Known) -> Term | None:
    """Return log σ if a term is what a package writes for it, else None."""
    found: dict[Term, Term] = {}
    if not _is_same(known.result, term, known.arguments, found):
        return None
    argument, addend = known.form.meant(*(found[one].value for one in known.arguments))
    return _make_log_sigmoid(argument, addend)


def _is_same(pattern: Term, term: Term, arguments: list[Term], found: dict[Term, Term]) -> bool:
    """Return whether a term is the pattern with other arguments, which are noted in ``found``."""
    if pattern in arguments:
        is_first_seen = found.setdefault(pattern, term) is term
        return is_first_seen and term.value.dtype == pattern.value.dtype
    if pattern.name != term.name or len(pattern.inputs) != len(term.inputs):
        return False
    if not pattern.name:
        number = None if term.name else known_number(term)
        return number is not None and _is_constant(pattern, number)
    if any(v != term.params.get(k) for k, v in pattern.params.items() if k not in LAYOUT):
        return False
    pairs = zip(pattern.inputs, term.inputs, strict=True)
    return all(_is_same(one, other, arguments, found) for one, other in pairs)
