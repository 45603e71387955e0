"""The posterior predictive of new rows: mean, spread and quantiles over draws, in chunks.

At draws θ_1..θ_S a row x_n has the values

    E[y | θ_s, x_n]   (kind "mean")     or     y_ns ~ p(y | θ_s, x_n)   (kind "response"),

S equally likely draws of the expected response, or of a new response. A quantile is exact for these
S values: linear between order statistics (Hyndman & Fan 1996, definition 7, NumPy's default). Rows
are evaluated a few thousand at a time, so that memory does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from decoct.data.base import Chunk, Columns, name_files
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.tables import counted_rows
from decoct.data.tables import rows as as_rows
from decoct.errors import BadValueError, ModelError, RequestError, RowsError
from decoct.models.base import AbstractModel, EncodedColumns, Params, RawRows
from decoct.models.index_bounds import check_indices, has_indices
from decoct.models.parameters import ParameterSpace
from decoct.passes.chunk_sums import pad
from decoct.passes.potentials import chunk_rows, to_likelihood
from decoct.runtime.precision import float64
from decoct.runtime.progress import advance, begin
from decoct.runtime.randomness import check_seed, host_rng

KINDS = ("mean", "response")


@dataclass(frozen=True)
class Predictive:
    """What is predicted, of any rows, at draws φ(θ_s) of likelihood parameters."""

    model: AbstractModel
    space: ParameterSpace
    draws: Float[np.ndarray, "S d"]
    kind: str
    quantiles: tuple[float, ...]
    seed: int

    @classmethod
    @float64
    def of(
        cls,
        model: AbstractModel,
        space: ParameterSpace,
        z: Float[np.ndarray, "S D"],
        kind: str,
        quantiles: Sequence[float],
        seed: int,
    ) -> Predictive:
        """Check the request; ``z`` are draws of θ, and ``space`` is the shape of θ."""
        if kind not in KINDS:
            raise RequestError(f"kind must be 'mean' or 'response', not {kind!r}.")
        if len(z) < 2:
            raise RequestError("Predictions need at least 2 draws.")
        params = model.to_likelihood_params(space.unflatten(jnp.asarray(z[0])))
        phi = np.asarray(to_likelihood(model, space, jnp.asarray(z)))
        levels = _check_quantiles(quantiles)
        return cls(model, ParameterSpace.of(params), phi, kind, levels, check_seed(seed))

    def chunks(self, source: Any, known: RawRows) -> Generator[pd.DataFrame, None, None]:
        """Yield the predictions of consecutive rows, the row numbers in the index.

        ``source`` is anything that `decoct.rows` takes; ``known`` are raw rows that the model was
        fitted to, or none, for their names and shapes.
        """
        self._try_out(self.model.encode(known))
        rows = as_rows(source)
        rows = rows.raw if isinstance(rows, EncodedRows) else rows
        columns = self.model.explanatory
        if columns is None:
            columns = tuple(name for name in known if name in rows.columns)
        counted_rows(rows)
        encoder = _NewRows(self.model, columns or rows.columns[:1])
        table = encoded(rows, encoder)
        _check_widths(table.take_raw([0]), known)
        self._check_groups(encoder, table)
        if self.kind == "response":
            self._lines(Chunk(0, table.take([0])))  # refuses what simulate is or returns
        return self._predict_chunks(table)

    @float64
    def _try_out(self, known: Columns) -> None:
        """Refuse a model that cannot predict two rows of such columns, a number for each."""
        two = {name: np.zeros((2, *v.shape[1:]), v.dtype) for name, v in known.items()}
        predict = partial(expected_responses, self.model, self.space)
        try:
            shape = jax.eval_shape(predict, self.draws, two).shape
        except jax.errors.JAXTypeError as error:
            raise ModelError(
                "predict must be pure JAX: jnp in place of NumPy, and jnp.where in place of `if`."
            ) from error
        if shape != (2, len(self.draws)):
            raise ModelError(
                f"predict returned shape {shape[:-1]} for 2 rows; it must return one value per "
                "row, shape (2,)."
            )

    @float64
    def _check_groups(self, encoder: Any, table: EncodedRows) -> None:
        """Refuse numbers of groups that the model does not have, in a pass where it has groups."""
        phi = jax.tree.map(np.asarray, self.space.unflatten(jnp.asarray(self.draws[0])))
        if has_indices(encoder, phi, table.take([0])):
            check_indices(encoder, phi, table)

    def _predict_chunks(self, table: EncodedRows) -> Generator[pd.DataFrame, None, None]:
        size = self._piece_rows
        names = ["mean", "sd", *(f"q{100.0 * q:.10g}" for q in self.quantiles)]
        begin("predicting", table.n_rows)
        # raw rows are read and encoded many pieces at a time, which has a fixed cost
        chunks = table.chunks(chunk_rows(self.draws.shape[1]))
        with name_files(table.raw), closing(chunks):
            for chunk in chunks:
                starts = range(0, chunk.n_rows, size)
                lines = np.concatenate([self._lines(chunk.piece(at, at + size)) for at in starts])
                numbers = pd.RangeIndex(chunk.start, chunk.start + chunk.n_rows)
                yield pd.DataFrame(lines, index=numbers, columns=names)
                advance(chunk.n_rows)

    @property
    def _piece_rows(self) -> int:
        """Rows that are evaluated at once: as in a pass, by the number of draws and parameters."""
        return chunk_rows(max(self.draws.shape))

    @float64
    def _lines(self, piece: Chunk) -> Float[np.ndarray, "n k"]:
        """Return mean, standard deviation and quantiles of every row of a piece."""
        rows, _ = pad(piece, self._piece_rows)
        draws = jnp.asarray(self.draws)
        values = np.asarray(expected_responses(self.model, self.space, draws, rows))
        values = values[: piece.n_rows]
        _require_finite(values, piece.start)
        if self.kind == "response":
            number = piece.start // self._piece_rows
            values = self._simulate(values, piece.columns, number)
            _require_finite(values, piece.start)
        lines = [values.mean(axis=1), values.std(axis=1, ddof=1)]
        ordered = np.sort(values, axis=1)  # a fifth of the time of np.quantile, which partitions
        for q in self.quantiles:
            place = q * (values.shape[1] - 1)
            below = int(place)
            low, high = ordered[:, below], ordered[:, below + 1]
            lines.append(low + (place - below) * (high - low))
        return np.stack(lines, axis=1)

    def _simulate(
        self, expected: Float[np.ndarray, "n S"], rows: Columns, number: int
    ) -> Float[np.ndarray, "n S"]:
        """Return a new response at every draw; its noise depends on the seed and the piece."""
        rng = host_rng(jax.random.fold_in(jax.random.key(self.seed), number))
        params = jax.vmap(self.space.unflatten)(jnp.asarray(self.draws))
        params = jax.tree.map(np.asarray, params)
        values = np.asarray(self.model.simulate(rng, expected, params, rows), dtype=np.float64)
        if values.shape != expected.shape:
            raise ModelError(
                f"simulate returned shape {values.shape} for expected responses of the shape "
                f"{expected.shape}; it must return the same shape, the draws on the last axis."
            )
        return values


class _NewRows(eqx.Module):
    """Rows without their response: how they are encoded, and what is evaluated of each."""

    model: AbstractModel
    columns: tuple[str, ...] = eqx.field(static=True)

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        return self.model.encode_explanatory(rows, start)

    def potentials(self, phi: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        return self.model.predict(phi, rows)


@eqx.filter_jit
def expected_responses(
    model: AbstractModel,
    space: ParameterSpace,
    draws: Float[Array, "S d"],
    rows: Mapping[str, Array],
) -> Float[Array, "n S"]:
    """Return E[y_n | φ_s]."""

    def one(phi: Float[Array, " d"]) -> Array:
        values: Any = model.predict(space.unflatten(phi), rows)
        try:
            return jnp.asarray(values)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"predict returned a {type(values).__name__}; it must return one value per row, "
                "an array of shape (n,)."
            ) from error

    return jax.vmap(one)(draws).T


def _check_quantiles(quantiles: Sequence[float]) -> tuple[float, ...]:
    try:
        asked = tuple(map(float, quantiles))
    except (TypeError, ValueError):
        asked = (np.nan,)
    if not all(0.0 < q < 1.0 for q in asked) or len(set(asked)) < len(asked):
        raise RequestError(
            f"quantiles are numbers between 0 and 1, such as (0.05, 0.95), each once; "
            f"not {quantiles!r}."
        )
    return asked


def _check_widths(first: Columns, known: RawRows) -> None:
    """Refuse rows with more or fewer numbers in a column than the model was fitted to."""
    for name in first.keys() & known.keys():
        new, old = (int(np.prod(np.shape(one[name])[1:])) for one in (first, known))
        if new != old:
            raise RowsError(
                f"Column '{name}' has {new} numbers per row; the model was fitted to {old}."
            )


def _require_finite(values: Float[np.ndarray, "n S"], start: int) -> None:
    if not np.isfinite(values).all():
        row, draw = np.argwhere(~np.isfinite(values))[0]
        raise BadValueError(
            f"The prediction is {values[row, draw]} at draw {draw}",
            start + int(row),
            "; check the units of its columns.",
        )
