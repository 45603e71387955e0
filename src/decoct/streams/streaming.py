"""A coreset of a stream of rows, in bounded memory, at any time.

Rows are cut into leaves by their number in the stream, wherever the batches end; `Tree` compresses
the leaves by merge-and-reduce. What is asked for is cut from the union of all parts by one more
compression, so that it has the size asked for and the parts can be better than it.

Why a stream comes close to one build: a compression at the posterior of n rows leaves a third-order
remainder of leaf · n^(−3/2), which at the final posterior, of N rows in random order, counts as
leaf · n⁻¹ N^(−1/2). Summed over the leaves that is log N times what one build leaves.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Selection
from decoct.coreset import Coreset
from decoct.data.base import Columns, checked_columns, columns_length
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel, require_model
from decoct.models.regression import few_values
from decoct.passes.potentials import Potentials
from decoct.report import Report, described
from decoct.runtime import progress
from decoct.runtime.checks import is_whole
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import checked_seed
from decoct.runtime.resources import use_compilation_cache
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, WeightedDensity, require_sampler
from decoct.stats.divergences import Gaussian
from decoct.status import Status
from decoct.streams.compress import Leaf
from decoct.streams.drift import DRIFTED, distance, moments, place_of
from decoct.streams.error_sum import NOTHING, ErrorSum
from decoct.streams.incoming import Buffer, Stretch, check_potentials, encoded_stretch
from decoct.streams.part import Part, joined, joined_columns
from decoct.streams.recompress import Recompressed, recompress
from decoct.streams.state import State
from decoct.streams.stream_file import read_stream, write_stream
from decoct.streams.tree import Engine, Plan, Tree

BEHIND = 1.0
"""Sd behind the posterior from which on the draws in use do not stand for it any more."""


class StreamingCoreset:
    """A coreset of all rows so far, from batches that are seen once.

    Parameters
    ----------
    model
        A model of `decoct.models`, or `decoct.Model` from your own functions. What it learns from
        data (the levels and scales of a formula) must be known before.
    size
        Most rows of the coreset.
    sampler
        A sampler of `decoct.samplers` that supplies the draws; default `Automatic`.
    seed
        The same seed and the same rows in the same order give the same coreset, however the rows
        were cut into batches.
    leaf
        Rows that are compressed at once; default max(20,000, 50 · ``node``). They are held until
        then. Fewer save memory, more lose less and are faster.
    node
        Rows that each part of the stream keeps, at least ``size``; default ``size`` plus twice the
        d(d+3)/2 numbers of a quadratic, but at least 50 and at most 300.
    draws
        S, draws a compression looks at; default min(2000, max(600, 4 · ``node``)).
    pool
        Candidate rows of a leaf; default max(600, 3 · ``node``).
    exchanges
        Most sweeps of swaps in a compression inside the stream: what is gained there is little. The
        last compression, to ``size``, has as many as `IteratedHilbert`.
    reach
        Posterior sd around the draws up to which parts are fitted as well, with as much weight as
        does not hurt the fit at the draws; 1 for the draws alone. It is what a posterior that
        wanders as the rows arrive is followed by, and costs a quarter more potentials.
    progress
        Show progress on standard error; None shows it on a terminal.

    Notes
    -----
    Held are at most ``leaf`` rows that wait and ``node`` rows for each of log₂(N/leaf) + 1 levels.

    The error: each compression knows ½‖residual‖² in nats at held-out draws of the posterior of its
    time. The report's last round adds them up as they have grown since (`decoct.merge` says how),
    ``kl_bound`` by the triangle inequality (Campbell & Broderick 2019, Corollaries 4.5 and 4.6) and
    ``kl_if_independent`` in squares, which is also the predicted KL. ``drift`` says by how many
    sd the posterior has moved since rows were compressed, in the coordinate or principal axis where
    it is most. 1 to 3 is usual for rows in random order; above `DRIFTED` = 5 nothing is
    predicted or bounded. `decoct.check`, where the rows can be read again, certifies.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> from decoct.streams import StreamingCoreset
    >>> rng = np.random.default_rng(0)
    >>> stream = StreamingCoreset(decoct.models.GaussianMean(np.eye(2)), size=8)
    >>> for _ in range(5):
    ...     stream.update({"x": rng.normal(size=(1000, 2))})
    >>> stream.coreset.n_rows, stream.coreset.size <= 8
    (5000, True)
    """

    def __init__(
        self,
        model: AbstractModel,
        size: int,
        *,
        sampler: Sampler | None = None,
        seed: int = 0,
        leaf: int | None = None,
        node: int | None = None,
        draws: int | None = None,
        pool: int | None = None,
        exchanges: int = 0,
        reach: float = 100.0,
        progress: bool | None = None,
    ) -> None:
        require_model(model)
        if sampler is not None:
            require_sampler(sampler)
        self.model = model
        self.size = whole("size", size, 1)
        self.seed = checked_seed(whole("seed", seed, 0))
        self.sampler: Sampler = Automatic() if sampler is None else sampler
        self.progress = progress
        given = {"leaf": leaf, "node": node, "draws": draws, "pool": pool, "exchanges": exchanges}
        least = {"leaf": 1, "node": self.size, "draws": 10, "pool": 1, "exchanges": 0}
        self.options: dict[str, int | None] = {
            name: None if value is None else whole(name, value, least[name])
            for name, value in given.items()
        }
        if not (isinstance(reach, int | float | np.number) and 1.0 <= float(reach) < np.inf):
            raise RequestError(f"reach must be a number of sd, at least 1, not {reach!r}.")
        self.reach = float(reach)
        self.state = State()
        self._made: Coreset | None = None
        self._potentials: Potentials | None = None

    @property
    def n_rows(self) -> int:
        """N, rows seen so far."""
        return self.state.buffer.start + self.state.buffer.n_rows

    @property
    def held_rows(self) -> int:
        """Rows in memory: those that wait and those of the parts."""
        return self.state.buffer.n_rows + sum(part.size for part in self.state.tree.parts)

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
        before = self.state, self._made, self._potentials
        started = time.perf_counter()
        self._made = None
        try:
            self._take_in(as_rows(batch))
            spent = time.perf_counter() - started
            self.state = replace(self.state, seconds=self.state.seconds + spent)
        except BaseException:
            self.state, self._made, self._potentials = before
            raise

    @property
    def coreset(self) -> Coreset:
        """The coreset of all rows so far; made when asked for, and kept until the next batch.

        Row numbers are those of the stream, the first row is 0.

        Warns
        -----
        UserWarning
            The posterior has moved by more than `DRIFTED` sd since rows were compressed. The
            report's status is then `Status.DRIFTED`, and it predicts no KL.

        Raises
        ------
        RequestError
            There are no rows yet.
        """
        if self._made is None:
            if not self.n_rows:
                raise RequestError("The stream has no rows yet; call update(batch) first.")
            use_compilation_cache()
            with ProgressBar(self.progress):
                self._made = self._coreset()
        drift = self._made.report.rounds[-1]["drift"]
        if drift > DRIFTED:
            warnings.warn(
                f"The posterior has moved by {drift:.1f} sd since some rows were compressed, so "
                "the sums of the errors may be far too small and no KL is predicted: the order of "
                "the rows tells something about their values. Shuffle them if you can, or raise "
                "node= and leaf=, and run decoct.check.",
                stacklevel=2,
            )
        return self._made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is held to one file, so that the stream can go on from there.

        The file appears complete or not at all.
        """
        write_stream(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: AbstractModel,
        *,
        sampler: Sampler | None = None,
        progress: bool | None = None,
    ) -> StreamingCoreset:
        """Return a stream that goes on exactly where the saved one was.

        Parameters
        ----------
        path
            What `save` wrote.
        model, sampler
            As for the stream that was saved.
        progress
            As in `StreamingCoreset`.

        Raises
        ------
        RequestError
            The file is missing or damaged, or of another model or sampler. Functions of your own
            (`decoct.Model`, the bridges) are compared by their values on some of the rows held.
        """
        return read_stream(cls, path, model, sampler, progress)

    def __repr__(self) -> str:
        return (
            f"StreamingCoreset({self.size} of {self.n_rows:,} rows so far, "
            f"{self.held_rows:,} held, {type(self.model).__name__})"
        )

    def _take_in(self, source: Any) -> None:
        known = tuple(self.state.layout.columns)
        columns = checked_columns(self.model.columns or known or None, source.columns)
        plan = self.state.plan or self._planned(source, columns)
        self.state = replace(self.state, plan=plan)
        with (
            ProgressBar(self.progress),
            closing(source.chunks(plan.leaf, columns)) as chunks,
        ):
            progress.begin("compressing", source.n_rows)
            for chunk in chunks:
                done = 0
                while done < chunk.n_rows:
                    room = plan.leaf - self.state.buffer.n_rows
                    piece = chunk.piece(done, done + room).columns
                    self._append(piece, plan)
                    done += columns_length(piece)
                progress.advance(chunk.n_rows)

    def _planned(self, source: Any, columns: tuple[str, ...]) -> Plan:
        """Return the plan, which depends on the number of parameters."""
        first = source.take(np.zeros(1, dtype=np.int64), columns)
        dim = Potentials(self.model, encoded_stretch(self.model, 0, first)).dim
        given = self.options
        node = given["node"] or self.size + min(300, max(50, dim * (dim + 3)))
        return Plan(
            leaf=given["leaf"] or max(20_000, 50 * node),
            node=node,
            draws=given["draws"] or min(2000, max(600, 4 * node)),
            pool=given["pool"] or max(600, 3 * node),
            exchanges=given["exchanges"] or 0,
            reach=self.reach,
        )

    def _append(self, piece: Columns, plan: Plan) -> None:
        """Check rows, hold them, and compress if they fill a leaf."""
        state, start = self.state, self.n_rows
        layout = state.layout.with_piece(piece, start)
        rows = Stretch(start, piece)
        self.model.check_rows(rows)
        values = few_values(state.values, self.model.distinct(rows))
        self.model.check_values(values)
        check_potentials(self._checker(piece, start), encoded_stretch(self.model, start, piece))
        buffer, tree = state.buffer.with_piece(piece), state.tree
        if buffer.n_rows == plan.leaf:
            tree = tree.grown(self._engine(plan), self._leaf(buffer))
            buffer = buffer.emptied()
        self.state = replace(state, layout=layout, buffer=buffer, tree=tree, values=values)

    def _checker(self, piece: Columns, start: int) -> Potentials:
        if self._potentials is None:
            self._potentials = Potentials(self.model, encoded_stretch(self.model, start, piece))
        return self._potentials

    def _engine(self, plan: Plan) -> Engine:
        return Engine(self.model, self.sampler, self._keys()[0], plan)

    def _keys(self) -> tuple[jax.Array, jax.Array]:
        """Return the key of the leaves and the key of what is made at this number of rows."""
        leaves, made = jax.random.split(jax.random.key(self.seed))
        for digit in (self.n_rows >> 32, self.n_rows & 0xFFFFFFFF):
            made = jax.random.fold_in(made, digit)
        return leaves, made

    def _leaf(self, buffer: Buffer) -> Leaf:
        raw = buffer.columns()
        return Leaf(raw, encoded_stretch(self.model, buffer.start, raw))

    def _held(self, plan: Plan) -> tuple[Tree, list[Part]]:
        """Return all rows held, the waiting ones compressed if they are many."""
        tree, buffer = self.state.tree, self.state.buffer
        parts = list(tree.parts)
        if not buffer.n_rows:
            return tree, parts
        leaf = self._leaf(buffer)
        if not parts or buffer.n_rows <= plan.node:
            return tree, [*parts, leaf.part()]
        tree, look = tree.looking(self._engine(plan), leaf)
        part, kl = look.compressed((), plan.node, plan.exchanges)
        return replace(tree, tally=tree.tally.with_loss(0, kl)), [*parts, part]

    def _coreset(self) -> Coreset:
        started, plan = time.perf_counter(), self.state.plan
        assert plan is not None
        tree, parts = self._held(plan)
        union = joined([part.selection for part in parts])
        raw = joined_columns([part.raw for part in parts])
        found: Recompressed | None = None
        kept: Selection = union
        place_key, key = jax.random.split(self._keys()[1])
        error, drift = ErrorSum.of_parts(part.error for part in parts), 0.0
        if tree.reference is not None:
            seen = moments(tree.reference.draws)
            now = self._place(place_key, union, seen)
            drift = max(part.drift_to(now.mean) for part in parts)
            # two sets of draws of one posterior differ, which is no growth
            place = now if distance(seen, now.mean) > BEHIND else seen
            error = ErrorSum.of_parts(part.error_at(place) for part in parts)
        if union.size > self.size:
            found = recompress(key, self.model, union, self.size, self.sampler)
            kept = found.chosen.selection
            raw = {name: column[found.positions] for name, column in raw.items()}
            predicted = found.chosen.predicted_kl
            error = error.with_step(0.0 if predicted is None else predicted) or error
        report = self._report(tree, parts, error, drift, found, plan)
        seconds = {"update": self.state.seconds, "coreset": time.perf_counter() - started}
        return Coreset(
            kept.indices,
            kept.weights,
            self.state.layout.cast(raw),
            self.n_rows,
            self.model,
            replace(report, seconds={name: round(value, 3) for name, value in seconds.items()}),
        )

    def _place(self, key: jax.Array, held: Selection, seen: Gaussian) -> Gaussian:
        """Return where the posterior of all rows held lies: the tree's draws may be behind it."""
        progress.begin("drawing from the posterior of all rows held", held.size)
        density = WeightedDensity.of(self.model, held.rows, held.weights)
        density = replace(density, start=seen.mean)
        return place_of(key, density, self.sampler, seen.mean)[0]

    def _report(
        self,
        tree: Tree,
        parts: list[Part],
        error: ErrorSum,
        drift: float,
        found: Recompressed | None,
        plan: Plan,
    ) -> Report:
        drifted = drift > DRIFTED
        status = Status.DRIFTED if drifted else Status.DONE if found is None else found.status
        numbers: Mapping[str, Any] = {
            "leaves": tree.leaves,
            "parts": len(parts),
            "rows_held": self.held_rows,
            "new_draws": tree.tally.refreshed,
            "near_only": tree.tally.near_only,
            "kl_by_level": [kl / count if count else None for count, kl in tree.tally.losses],
            **(NOTHING if drifted else error.to_dict()),
            "drift": drift,
        }
        return Report(
            {**described(plan), "name": "StreamingCoreset", "sampler": described(self.sampler)},
            self.seed,
            status,
            self.size,
            None,
            [*([] if found is None else found.rounds), dict(numbers)],
            1,
            self.n_rows + tree.tally.evaluations + (found.evaluations if found else 0),
            predicted_kl=None if drifted else error.kl_if_independent,
        )


def whole(option: str, value: Any, least: int) -> int:
    """Return an option that is a whole number, or say which it has to be."""
    if not is_whole(value, least):
        raise RequestError(f"{option} must be a whole number, at least {least}, not {value!r}.")
    return int(value)
