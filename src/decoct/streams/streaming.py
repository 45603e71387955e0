"""A coreset of a stream of rows, in bounded memory, at any time.

Incoming rows wait; when ``buffer`` rows have come together they and the rows kept are compressed to
``keep`` rows and a site (`decoct.streams.compress`), at the posterior of everything so far. What is
asked for is one more compression, to ``size``, of what is kept and what waits.

A compression loses only what the kept rows miss of the remainders f_n − q_n. In random order b rows
compressed when n were seen leave a remainder of third order that counts as b n⁻¹ N^(−1/2) at the
final posterior: in all, log N times that of one build.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Construction
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Columns, checked_columns, columns_length
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError, RowsError
from decoct.models.base import AbstractModel, require_model
from decoct.models.regression import few_values
from decoct.models.site import GaussianSite
from decoct.passes.potentials import Potentials
from decoct.report import Report, described
from decoct.runtime import progress
from decoct.runtime.checks import is_whole
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import checked_seed
from decoct.runtime.resources import use_compilation_cache
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler
from decoct.status import Status
from decoct.streams.compress import compress
from decoct.streams.drift import with_drift
from decoct.streams.stream_file import State, read_stream, restored, write_stream

OPTIONS = ("buffer", "keep", "method", "sampler")


class StreamingCoreset:
    """A coreset of all rows so far, from batches that are seen once.

    Parameters
    ----------
    model
        A model of `decoct.models`, or `decoct.Model` from your own functions. What it learns from
        data (the levels and scales of a formula) must be known before.
    size
        Most rows of the coreset; 0 for a site alone.
    method
        How rows are compressed; default `IteratedHilbert`.
    sampler
        A sampler of `decoct.samplers` that supplies the draws; default `Automatic`.
    seed
        The same seed and the same rows in the same order give the same coreset, however the rows
        were cut into batches.
    buffer
        Rows that wait until they are compressed at once. Fewer save memory, more lose less.
    keep
        Most rows kept of all that were compressed, at least ``size``; default ``size`` + d(d+3),
        but at least 50 and at most 300 more than ``size``.
    progress
        Show progress on standard error; None shows it on a terminal.

    Notes
    -----
    At most ``buffer`` + ``keep`` rows are in memory. The predicted KL is the sum of what each
    compression is predicted to lose; ``drift`` in the report's last round says how far the rows of
    a buffer, or those before it, lay from both together (`decoct.merge`). `decoct.check`, where the
    rows can be read again, certifies.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> from decoct.streams import StreamingCoreset
    >>> rng = np.random.default_rng(0)
    >>> stream = StreamingCoreset(decoct.models.GaussianMean(np.eye(2)), size=0)
    >>> for _ in range(5):
    ...     stream.update({"x": rng.normal(size=(1000, 2))})
    >>> stream.coreset.n_rows, stream.coreset.size  # a Gaussian likelihood is a quadratic
    (5000, 0)
    """

    def __init__(
        self,
        model: AbstractModel,
        size: int,
        *,
        method: Construction | None = None,
        sampler: Sampler | None = None,
        seed: int = 0,
        buffer: int = 20_000,
        keep: int | None = None,
        progress: bool | None = None,
    ) -> None:
        require_model(model)
        if sampler is not None:
            require_sampler(sampler)
        self.model = model
        self.size = _whole("size", size, 0)
        self.method = IteratedHilbert() if method is None else method
        self.sampler: Sampler = Automatic() if sampler is None else sampler
        self.seed = checked_seed(_whole("seed", seed, 0))
        self.buffer = _whole("buffer", buffer, 1)
        self.keep = None if keep is None else _whole("keep", keep, self.size)
        self.progress = progress
        self.state = State()
        self._made: Coreset | None = None
        self._potentials: Potentials | None = None

    @property
    def n_rows(self) -> int:
        """N, rows seen so far."""
        return self.state.held.n_rows if self.state.held else 0

    @property
    def rows_in_memory(self) -> int:
        """Rows that wait and rows that are kept."""
        return self.state.held.size if self.state.held else 0

    def update(self, batch: Any) -> None:
        """Take in more rows.

        Parameters
        ----------
        batch
            Anything `decoct.rows` accepts, of any length. Arrays may be overwritten afterwards.

        Raises
        ------
        DecoctError
            A row or a column cannot be used; the message names the row by its number in the stream.
            The stream is then as it was before this batch, and can go on with another.
        """
        use_compilation_cache()
        before = dict(vars(self))
        self._made = None
        try:
            source = as_rows(batch)
            known = tuple(self.state.held.rows) if self.state.held else None
            columns = checked_columns(self.model.columns or known, source.columns)
            with ProgressBar(self.progress), closing(source.chunks(None, columns)) as chunks:
                progress.begin("compressing", source.n_rows)
                for chunk in chunks:
                    self._take_in(chunk)
        except BaseException:
            vars(self).update(before)
            raise

    @property
    def coreset(self) -> Coreset:
        """The coreset of all rows so far; made when asked for, and kept until the next batch.

        Row numbers are those of the stream, the first row is 0.

        Warns
        -----
        UserWarning
            The posterior has moved by more than 5 sd: the report's status is `Status.DRIFTED`, and
            it predicts no KL.

        Raises
        ------
        RequestError
            There are no rows yet.
        """
        if self.state.held is None:
            raise RequestError("The stream has no rows yet; call update(batch) first.")
        if self._made is None:
            use_compilation_cache()
            with ProgressBar(self.progress):
                self._made = self._compressed(self.state.held, self.size, self.method)
        if self._made.report.status is Status.DRIFTED:
            warnings.warn(
                f"The posterior has moved by {self._made.report.rounds[-1]['drift']:.1f} sd since "
                "some rows were compressed, so no KL is predicted: the order of the rows tells "
                "something about their values. Shuffle them if you can, or raise buffer= and "
                "keep=, and run decoct.check.",
                stacklevel=2,
            )
        return self._made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is in memory to one file, to go on from there."""
        write_stream(path, self._identity(), self.state)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: AbstractModel,
        *,
        method: Construction | None = None,
        sampler: Sampler | None = None,
        progress: bool | None = None,
    ) -> StreamingCoreset:
        """Return a stream that goes on exactly where the one that `save` wrote was.

        ``model``, ``method`` and ``sampler`` are as for the stream that was saved.

        Raises
        ------
        RequestError
            The file is missing or damaged, or of another model, method or sampler. Functions of
            your own (`decoct.Model`, the bridges) are compared by their values on some of the rows.
        """
        packed = read_stream(path)
        options = packed["options"]
        stream = cls(model, method=method, sampler=sampler, progress=progress, **options)
        stream.state = restored(path, packed, model, stream._identity())
        return stream

    def __repr__(self) -> str:
        return (
            f"StreamingCoreset({self.size} of {self.n_rows:,} rows so far, "
            f"{self.rows_in_memory:,} in memory, {type(self.model).__name__})"
        )

    def _identity(self) -> dict[str, Any]:
        method, sampler = described(self.method), described(self.sampler)
        named = {"model": self.model.to_dict(), "method": method, "sampler": sampler}
        options = {name: getattr(self, name) for name in ("size", "seed", "buffer", "keep")}
        return {**{name: repr(value) for name, value in named.items()}, "options": options}

    def _take_in(self, chunk: Chunk) -> None:
        """Check rows, let them wait, and compress whenever the buffer is full."""
        done = 0
        while done < chunk.n_rows:
            piece = chunk.piece(done, done + self.buffer - self.state.n_waiting).columns
            n = columns_length(piece)
            values, held = self._checked(piece), self._joined(piece, n)
            self.state = State(held, self.state.n_waiting + n, values)
            if self.state.n_waiting == self.buffer:
                method, keep = self.method, self.keep
                if keep is None:
                    keep = self.size + min(300, max(50, held.dim * (held.dim + 3)))
                if isinstance(method, IteratedHilbert):  # more gains little inside the stream
                    method = replace(method, exchanges=0)
                self.state = State(self._compressed(held, keep, method), 0, values)
            done += n
        progress.advance(chunk.n_rows)

    def _checked(self, piece: Columns) -> tuple[float, ...]:
        """Refuse rows that do not fit to those before, or that the model cannot use.

        Returns the smallest few values of the response so far.
        """
        for name, old in self.state.held.rows.items() if self.state.held else ():
            new = piece[name]
            kinds = {old.dtype.kind, new.dtype.kind}
            alike = old.dtype == new.dtype or kinds <= set("biuf")
            alike = alike or (len(kinds) == 1 and kinds <= set("MmUS"))
            if not alike or old.shape[1:] != new.shape[1:]:
                raise RowsError(
                    f"Column '{name}' has the type {new.dtype} and entries of shape "
                    f"{new.shape[1:]} from row {self.n_rows} on, and {old.dtype} and "
                    f"{old.shape[1:]} before; every batch must have the same columns."
                )
        rows = _NumberedRows(self.n_rows, piece)
        self.model.check_rows(rows)
        values = few_values(self.state.values, self.model.distinct(rows))
        self.model.check_values(values)
        table = encoded(rows, self.model)
        columns = next(table.chunks(table.n_rows)).columns
        if self._potentials is None:  # to make one costs more than to evaluate a row
            self._potentials = Potentials(self.model, ArrayRows(columns))
        potentials = self._potentials
        potentials.rows = _NumberedRows(self.n_rows, columns)
        potentials.totals(potentials.space.flatten(potentials.initial)[None])
        return values

    def _joined(self, piece: Columns, n: int) -> Coreset:
        """Return what is held and ``n`` more rows of weight 1."""
        held = self.state.held
        if held is None:
            method = {name: described(getattr(self, name)) for name in OPTIONS}
            method["name"] = "StreamingCoreset"
            last: dict[str, Any] = {"drift": 0.0}
            report = Report(method, self.seed, Status.DONE, None, None, [last], 1, 0, {}, 0.0)
            none = {name: values[:0] for name, values in piece.items()}
            held = Coreset(np.zeros(0, np.int64), np.zeros(0), none, 0, self.model, report)
        return Coreset(
            np.r_[held.indices, np.arange(held.n_rows, held.n_rows + n)],
            np.r_[held.weights, np.ones(n)],
            {name: np.concatenate([held.rows[name], values]) for name, values in piece.items()},
            held.n_rows + n,
            held.model,
            replace(held.report, evaluations=held.report.evaluations + n),
            held.site,
        )

    def _compressed(self, held: Coreset, size: int, method: Construction) -> Coreset:
        """Return at most ``size`` rows and a site, and how far the rows that wait lie away."""
        key = jax.random.fold_in(jax.random.key(self.seed), held.n_rows % 2**32)
        place_key, key = jax.random.split(key)
        n_kept = held.size - self.state.n_waiting
        parts = [_some(held, slice(n_kept), held.site), _some(held, slice(n_kept, None), None)]
        parts = [part for part in parts if part.size or part.site]
        held = with_drift(place_key, parts, held, self.sampler)
        return compress(key, held, size, self.sampler, method)


class _NumberedRows(ArrayRows):
    """Consecutive rows of a stream: its chunks carry the numbers the rows have there."""

    def __init__(self, start: int, columns: Columns) -> None:
        super().__init__(columns)
        self.start = start

    def chunks(self, size: int | None = None, columns: Any = None) -> Generator[Chunk, None, None]:
        pieces = super().chunks(size, columns)
        return (Chunk(self.start + piece.start, piece.columns) for piece in pieces)


def _some(coreset: Coreset, which: slice, site: GaussianSite | None) -> Coreset:
    rows = {name: values[which] for name, values in coreset.rows.items()}
    indices, weights = coreset.indices[which], coreset.weights[which]
    return replace(coreset, indices=indices, weights=weights, rows=rows, site=site)


def _whole(option: str, value: Any, least: int) -> int:
    if not is_whole(value, least):
        raise RequestError(f"{option} must be a whole number, at least {least}, not {value!r}.")
    return int(value)
