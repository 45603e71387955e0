"""A coreset of a stream of rows, in bounded memory, at any time.

Rows are buffered. When there are ``buffer`` of them, they and the kept rows are compressed to
``keep`` rows and a site, at the posterior of everything so far (`decoct.streams.compress`). The
coreset is one more compression, to ``size``.
"""

from __future__ import annotations

import os
import warnings
from contextlib import closing
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from decoct.building.checkpoint import read_checkpoint, write_checkpoint
from decoct.constructions.base import Construction
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset, describe_by
from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Columns, check_columns, columns_length
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError, RowsError
from decoct.models.base import AbstractModel, require_model
from decoct.models.fingerprint import find_difference
from decoct.models.regression import few_values
from decoct.passes.potentials import Potentials
from decoct.report import Report, Status, described
from decoct.runtime import progress
from decoct.runtime.checks import checked_whole
from decoct.runtime.files import require_writable
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import check_seed
from decoct.runtime.resources import use_compilation_cache
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler
from decoct.streams.compress import compress, some
from decoct.streams.drift import with_drift
from decoct.streams.merge import unite

FORMAT = 7
OPTIONS = ("size", "seed", "buffer", "keep")


class StreamingCoreset:
    """A coreset of all rows so far, from batches that are seen once.

    Parameters
    ----------
    model
        A formula must have been fitted: its levels and scales come from data.
    size
        Most rows of the coreset; 0 for a site alone.
    method
        How rows are compressed; default `IteratedHilbert`.
    sampler
        Supplies the draws; default `Automatic`.
    seed
        The same seed and the same rows in the same order give the same coreset, however the rows
        were cut into batches.
    buffer
        Rows compressed together. Few save memory; many are more accurate and take less time.
    keep
        Most rows that a compression keeps; default ``size`` + min(300, max(50, d(d+3))).
    progress
        Show progress on standard error; None shows it on a terminal.

    Raises
    ------
    RequestError
        ``model`` is no model, ``sampler`` is no sampler, or ``size``, ``seed``, ``buffer`` or
        ``keep`` is out of range.

    Notes
    -----
    At most ``buffer`` + ``keep`` rows are in memory. The predicted KL is the sum over all
    compressions. ``drift`` is as for `decoct.merge`, each buffer being a part.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> stream = decoct.StreamingCoreset(decoct.models.GaussianMean(np.eye(2)), size=0)
    >>> stream.update({"x": rng.normal(size=(5000, 2))})
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
        buffer: int = 100_000,
        keep: int | None = None,
        progress: bool | None = None,
    ) -> None:
        use_compilation_cache()
        require_model(model)
        self.model = model
        self.size = checked_whole("size", size, 0)
        self.method = IteratedHilbert() if method is None else method
        self.sampler: Sampler = Automatic() if sampler is None else sampler
        require_sampler(self.sampler)
        self.seed = check_seed(checked_whole("seed", seed, 0))
        self.buffer = checked_whole("buffer", buffer, 1)
        self.keep = None if keep is None else checked_whole("keep", keep, self.size)
        self.progress = progress
        self._stored: Coreset | None = None  # kept rows and a site, then buffered rows
        self._n_waiting = 0
        self._values: list[float] = []  # the smallest few of the response
        self._made: Coreset | None = None
        self._potentials: Potentials | None = None

    @property
    def n_rows(self) -> int:
        """N, rows seen so far."""
        return self._stored.n_rows if self._stored else 0

    @property
    def rows_in_memory(self) -> int:
        """Buffered rows and kept rows."""
        return self._stored.size if self._stored else 0

    def update(self, batch: Any) -> None:
        """Add rows.

        Parameters
        ----------
        batch
            Anything `decoct.rows` accepts, of any length. Arrays may be overwritten afterwards.

        Raises
        ------
        DecoctError
            A row, named by its number in the stream, or a column cannot be used. The stream is then
            as it was before this batch.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> stream = decoct.StreamingCoreset(decoct.models.GaussianMean(np.eye(2)), size=0)
        >>> for _ in range(3):
        ...     stream.update({"x": np.ones((1000, 2))})
        >>> stream.coreset.n_rows
        3000
        """
        before = dict(vars(self))
        self._made = None
        try:
            source = as_rows(batch)
            known = tuple(self._stored.rows) if self._stored else None
            columns = check_columns(self.model.columns or known, source.columns)
            with ProgressBar(self.progress), closing(source.chunks(None, columns)) as chunks:
                progress.begin("compressing", source.n_rows)
                for chunk in chunks:
                    self._take_in(chunk)
        except BaseException:
            vars(self).update(before)
            raise

    @property
    def coreset(self) -> Coreset:
        """The coreset of all rows so far, made when asked for; the stream's first row is row 0.

        Warns
        -----
        UserWarning
            The posterior has moved by more than 5 sd; no KL is predicted (`Status.DRIFTED`).

        Raises
        ------
        RequestError
            There are no rows yet.
        """
        if self._stored is None:
            raise RequestError("The stream has no rows yet; call update(batch) first.")
        if self._made is None:
            with ProgressBar(self.progress):
                self._made = self._compress(self._stored, self.size, self.method)
        if self._made.report.status is Status.DRIFTED:
            warnings.warn(
                f"The posterior has moved by {self._made.report.rounds[-1]['drift']:.1f} sd since "
                "some rows were compressed, so no KL is predicted. Shuffle the rows if you can, or "
                "raise buffer= and keep=, and run decoct.check.",
                stacklevel=2,
            )
        return self._made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is in memory to one .npz file, from which `load` resumes. No pickle.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> stream = decoct.StreamingCoreset(decoct.models.GaussianMean(np.eye(2)), size=0)
        >>> stream.update({"x": np.ones((500, 2))})
        >>> stream.save("stream.npz")
        """
        content = {"stream": FORMAT, "model": repr(self.model.to_dict()), "stored": None}
        if (stored := self._stored) is not None:
            rows = {"indices": stored.indices, "weights": stored.weights, "rows": dict(stored.rows)}
            content["stored"] = {**rows, **stored.description()}
        content |= {"n_waiting": self._n_waiting, "values": self._values, **self._options()}
        write_checkpoint(require_writable(path, "path"), content)

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
        """Return the stream that `save` wrote, with the same model, method and sampler.

        Returns
        -------
        StreamingCoreset
            The stream, ready for `update`.

        Raises
        ------
        RequestError
            The file is missing or damaged, or of another model, method or sampler. Functions of
            your own are compared by their values on the stored rows.

        Examples
        --------
        >>> import decoct, numpy as np
        >>> model = decoct.models.GaussianMean(np.eye(2))
        >>> stream = decoct.StreamingCoreset(model, size=0)
        >>> stream.update({"x": np.ones((500, 2))})
        >>> stream.save("stream.npz")
        >>> decoct.StreamingCoreset.load("stream.npz", model).n_rows
        500
        """
        packed = read_checkpoint(path)
        if packed.get("stream") != FORMAT:
            raise RequestError(
                f"{path} is not a stream that can be read: it has format {packed.get('stream')} "
                f"and this decoct reads {FORMAT}; use the decoct that saved it."
            )
        options = {name: packed[name] for name in OPTIONS}
        stream = cls(model, method=method, sampler=sampler, progress=progress, **options)
        for name, value in {"model": repr(model.to_dict()), **stream._options()}.items():
            if packed[name] != value:
                raise RequestError(
                    f"The stream in {path} has another {name}: {packed[name]}, not {value}."
                )
        stream._n_waiting, stream._values = packed["n_waiting"], packed["values"]
        if parts := packed["stored"]:
            kept = parts["indices"], parts["weights"], parts["rows"]
            stream._stored = stored = describe_by(parts, *kept, model)
            columns = model.encode(stored.rows, stored.indices)
            if "values" in parts and (differs := find_difference(parts["values"], model, columns)):
                raise RequestError(f"The stream in {path} has another model: {differs}.")
        return stream

    def _options(self) -> dict[str, Any]:
        return {name: described(getattr(self, name)) for name in (*OPTIONS, "method", "sampler")}

    def _take_in(self, chunk: Chunk) -> None:
        """Check and buffer rows, and compress whenever the buffer is full."""
        done = 0
        while done < chunk.n_rows:
            piece = chunk.piece(done, done + self.buffer - self._n_waiting).columns
            n = columns_length(piece)
            self._values, self._stored = self._checked(piece), self._join(piece, n)
            self._n_waiting += n
            if self._n_waiting == self.buffer:
                method, keep, d = self.method, self.keep, self._stored.dim
                if keep is None:
                    keep = self.size + min(300, max(50, d * (d + 3)))
                if isinstance(method, IteratedHilbert):  # more gains little inside the stream
                    method = replace(method, exchanges=0)
                self._stored, self._n_waiting = self._compress(self._stored, keep, method), 0
            done += n
        progress.advance(chunk.n_rows)

    def _checked(self, piece: Columns) -> list[float]:
        """Return the smallest few values of the response so far, or refuse unusable rows."""
        for name, old in self._stored.rows.items() if self._stored else ():
            was, now = ((_kind(column), column.shape[1:]) for column in (old, piece[name]))
            if was != now:
                raise RowsError(
                    f"Column '{name}' has the type {now[0]} and entries of shape {now[1]} from row "
                    f"{self.n_rows} on, and {was[0]} and {was[1]} before."
                )
        rows = ArrayRows(piece, self.n_rows)
        self.model.check_rows(rows)
        values = few_values(self._values, self.model.distinct(rows))
        self.model.check_values(values)
        table = encoded(rows, self.model)
        columns = next(table.chunks(table.n_rows)).columns
        # to make one costs more than to evaluate a row
        potentials = self._potentials = self._potentials or Potentials(self.model, table)
        potentials.rows = ArrayRows(columns, self.n_rows)
        potentials.totals(potentials.space.flatten(potentials.initial)[None])
        return list(values)

    def _join(self, piece: Columns, n: int) -> Coreset:
        """Return the stored rows and ``n`` more of weight 1."""
        method = {"name": "StreamingCoreset", **self._options()}
        rounds: list[dict[str, Any]] = [{"drift": 0.0}]
        report = Report(method, self.seed, Status.DONE, None, None, rounds, 1, n, {}, 0.0)
        new = Coreset(np.arange(n), np.ones(n), piece, n, self.model, report)
        whole = unite([self._stored, new] if self._stored else [new])  # a copy in any case
        return replace(whole, report=replace(whole.report, method=method, passes=1))

    def _compress(self, stored: Coreset, size: int, method: Construction) -> Coreset:
        """Return at most ``size`` rows and a site, with the drift of the buffered rows."""
        key = jax.random.key(self.seed)
        for digit in (stored.n_rows >> 32, stored.n_rows & 0xFFFFFFFF, size == self.size):
            key = jax.random.fold_in(key, digit)
        place_key, key = jax.random.split(key)
        n_kept = stored.size - self._n_waiting
        parts = [some(stored, slice(n_kept), stored.site), some(stored, slice(n_kept, None), None)]
        parts = [part for part in parts if part.size or part.site]
        stored = with_drift(place_key, parts, stored, self.sampler)
        return compress(key, stored, size, self.sampler, method)


def _kind(column: np.ndarray) -> str:
    return "number" if column.dtype.kind in "biuf" else column.dtype.type.__name__
