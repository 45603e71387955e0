"""The one driver: it owns the loop of every construction.

Rounds, budget, progress, checkpoint and resume, statuses and the report are here, so a
construction gets them for free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from decoct.building.checkpoint import Checkpoint, held, read_build, write_checkpoint
from decoct.building.request import Request, whole
from decoct.constructions.base import Chosen, Construction, Plan, Problem, StepInfo
from decoct.coreset import Coreset
from decoct.data.base import Rows, name_files
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.progress_rows import counted_rows, traffic
from decoct.data.tables import rows as as_rows
from decoct.errors import ShortBuildWarning
from decoct.models.base import AbstractModel, require_model
from decoct.passes.potentials import Potentials
from decoct.report import Report, described
from decoct.runtime.blas import few_threads
from decoct.runtime.compilation import use_compilation_cache
from decoct.runtime.files import require_writable
from decoct.runtime.memory import keep_buffers
from decoct.runtime.progress import ProgressBar, clock_time
from decoct.samplers.base import Sampler
from decoct.status import Status


def build(
    model: AbstractModel,
    rows: Rows | Any,
    *,
    size: int | None = None,
    kl: float | None = None,
    method: Construction | None = None,
    sampler: Sampler | None = None,
    seed: int = 0,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Coreset:
    """Compress the rows to a small weighted subset that carries the posterior.

    Minimises KL(π_w‖π) over weights w ≥ 0 with at most ``size`` of them positive (Campbell &
    Beronov 2019, Eq. 5).

    Parameters
    ----------
    model
        A model of `decoct.models`, or `decoct.Model` from your own functions, or what
        `decoct.from_numpyro`, `decoct.from_pymc` and `decoct.from_bambi` return. Mixtures are
        built with `decoct.mixture.build`.
    rows
        Anything `decoct.rows` accepts.
    size
        Most rows to keep, 1 ≤ size ≤ N.
    kl
        Instead of ``size``: grow until KL(π_w‖π), its Monte Carlo error included, is at most this
        many nats.
    method
        A construction of `decoct.constructions`; default `IteratedHilbert`.
    sampler
        A sampler of `decoct.samplers` that supplies the draws; default `Automatic`.
    seed
        The same seed on the same rows gives the same coreset.
    progress
        Show progress on standard error; None shows it on a terminal.
    checkpoint
        A file that is written before the first round and after every round, and removed at the
        end. If it exists, the build goes on from it; it must then be of the same request, model and
        table. While the build runs, no other may use it. What is kept are finished rounds: a
        construction that is done in one (all but `IteratedHilbert`, `SparseVI` and `L1Path`)
        begins again. To know the table again by its values, it is walked once more. Without a
        checkpoint, a build that is interrupted leaves nothing.

    Returns
    -------
    Coreset
        ``.report.status`` says whether what was asked was reached.

    Warns
    -----
    ShortBuildWarning
        What was asked was not reached: the sentence of the status.

    Raises
    ------
    DecoctError
        The rows, the model or an option cannot be used; the message says which and what to do.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(2000, 3))
    >>> y = rng.random(2000) < 1 / (1 + np.exp(-x[:, 0]))
    >>> model = decoct.models.LogisticRegression()
    >>> coreset = decoct.build(model, {"x": x, "y": y}, size=30)
    >>> coreset.size <= 30, coreset.report.predicted_kl < 1e-2
    (True, True)
    """
    request = Request.checked(
        size=size,
        kl=kl,
        method=method,
        sampler=sampler,
        seed=seed,
    )
    if checkpoint is not None:
        require_writable(checkpoint, "checkpoint")
    with building(model, rows, request, progress, checkpoint) as coreset:
        _warn_if_short(coreset)
        return coreset


def path(
    model: AbstractModel,
    rows: Rows | Any,
    sizes: Sequence[int],
    *,
    method: Construction | None = None,
    sampler: Sampler | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> list[Coreset]:
    """Return one coreset per size from a single run of the construction.

    A curve of KL against size costs one build. Parameters are those of `build`.

    Parameters
    ----------
    sizes
        Sizes wanted, in any order; the answer is in ascending order of size, repeats removed.
    """
    request = Request.checked(
        size=max(sizes, default=0),
        kl=None,
        method=method,
        sampler=sampler,
        seed=seed,
    )
    wanted = tuple(sorted({whole("sizes", one) for one in sizes}))
    return _build(model, rows, dataclasses.replace(request, sizes=wanted), progress, None)


def resume(
    checkpoint: str | os.PathLike[str],
    model: AbstractModel,
    rows: Rows | Any,
    *,
    method: Construction | None = None,
    sampler: Sampler | None = None,
    progress: bool | None = None,
) -> Coreset:
    """Go on with a build from its checkpoint; the coreset is the one it would have been.

    Parameters
    ----------
    checkpoint
        The file that ``build(..., checkpoint=...)`` left.
    model, rows, method, sampler
        As given to `build`; size, kl and seed are in the checkpoint.

    Raises
    ------
    RequestError
        The checkpoint is missing, damaged, or of another model, method or table.
    """
    asked = read_build(checkpoint)["request"]
    request = Request.checked(
        size=asked["size"],
        kl=asked["kl"],
        method=method,
        sampler=sampler,
        seed=asked["seed"],
    )
    with building(model, rows, request, progress, checkpoint) as coreset:
        _warn_if_short(coreset)
        return coreset


@contextlib.contextmanager
def building(
    model: AbstractModel,
    rows: Rows | Any,
    request: Request,
    progress: bool | None,
    checkpoint: str | os.PathLike[str] | None,
) -> Iterator[Coreset]:
    """Build, and hold the checkpoint until the block has ended.

    It is removed if the block ends well: whoever saves the coreset there has one of the two at any
    time. Parameters are those of `build`.
    """
    with held(checkpoint):
        yield _build(model, rows, request, progress, checkpoint)[-1]
        if checkpoint is not None:
            Path(checkpoint).unlink(missing_ok=True)


def _warn_if_short(coreset: Coreset) -> None:
    if not coreset.report.status.ok:
        warnings.warn(coreset.report.status.value, ShortBuildWarning, stacklevel=3)


def _build(
    model: AbstractModel,
    rows: Rows | Any,
    request: Request,
    progress: bool | None,
    checkpoint: str | os.PathLike[str] | None,
) -> list[Coreset]:
    use_compilation_cache()
    keep_buffers()
    clock = _Clock()
    require_model(model)
    source = as_rows(rows)
    with ProgressBar(progress) as bar, name_files(source):
        with clock.phase("encode"):
            sizes = request.sizes_for(counted_rows(source, bar.stretch))
            bar.begin("checking rows", source.n_rows)
            model.check(source)
            table = encoded(source, model)
        potentials = Potentials(model, table, bar.advance)
        problem = Problem(potentials, request.sampler, sizes, request.kl, bar.stretch)
        known = None
        if checkpoint is not None:
            with clock.phase("encode"):
                bar.begin("knowing the table again", source.n_rows)
                known = Checkpoint(checkpoint, request.identity(model, table, bar.advance))
        with clock.phase("rounds"):
            bar.begin("preparing", source.n_rows)
            run = _Run(request, problem, known)
            run.go(bar)
        with clock.phase("take rows"):
            bar.begin("taking the rows kept", source.n_rows)
            chosen = run.chosen()
            raw = [_raw_rows(table, one) for one in chosen]
    report = dataclasses.replace(run.report(clock.seconds), traffic=traffic(source))
    return [
        Coreset(
            one.selection.indices.astype(np.int64),
            one.selection.weights,
            kept,
            source.n_rows,
            model,
            dataclasses.replace(
                report,
                status=report.status.judged(one.predicted_kl),
                predicted_kl=one.predicted_kl,
            ),
        )
        for one, kept in zip(chosen, raw, strict=True)
    ]


def _raw_rows(table: EncodedRows, chosen: Chosen) -> dict[str, np.ndarray]:
    return table.take_raw(chosen.selection.indices)


class _Run:
    """One run of a construction, from its start or from a checkpoint."""

    def __init__(self, request: Request, problem: Problem, checkpoint: Checkpoint | None) -> None:
        self.request, self.problem, self.checkpoint = request, problem, checkpoint
        self.key = jax.random.key(request.seed)
        self.infos: list[dict[str, Any]] = []
        self.state = self._restored()
        if self.state is None:
            self.state = request.method.init(jax.random.fold_in(self.key, 0), problem)
            self._save()

    def go(self, bar: ProgressBar) -> None:
        """Step until the construction says it is done."""
        plan = self._plan()
        with few_threads(plan.array_bytes if plan is not None else 0):
            self._go(bar)

    def _go(self, bar: ProgressBar) -> None:
        method = self.request.method
        while method.status(self.problem, self.state) is Status.RUNNING:
            number = len(self.infos) + 1
            name = f"round {number} of {method.steps(self.problem)}"
            bar.begin(name + self._time_left(), self.problem.n_rows)
            started = time.perf_counter()
            key = jax.random.fold_in(self.key, number)
            self.state, info = method.step(key, self.problem, self.state)
            self._note(info, time.perf_counter() - started)

    def chosen(self) -> tuple[Chosen, ...]:
        return self.request.method.path(self.state)

    def _plan(self) -> Plan | None:
        """Return what the construction says of its cost; one of the user's own may say nothing."""
        plan = getattr(self.request.method, "plan", None)
        return None if plan is None else plan(self.problem)

    def _time_left(self) -> str:
        """Say how long all rounds will still take at most, from the rounds so far."""
        done = self.problem.potentials.counts.evaluations
        plan = self._plan()
        if plan is None or not self.infos or not done:
            return ""
        seconds = sum(info["seconds"] for info in self.infos)
        left = plan.evaluations[1] - done
        return f" (all: {clock_time(max(left, 0.0) * seconds / done)} at most)"

    def report(self, seconds: dict[str, float]) -> Report:
        method, counts = self.request.method, self.problem.potentials.counts
        return Report(
            described(method),
            self.request.seed,
            method.status(self.problem, self.state),
            self.request.size,
            self.request.kl,
            self.infos,
            counts.passes,
            counts.evaluations,
            {name: round(value, 3) for name, value in seconds.items()},
            sampler=described(self.request.sampler),
        )

    def _note(self, info: StepInfo, seconds: float) -> None:
        self.infos.append({**info.numbers, "seconds": round(seconds, 3)})
        self._save()

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        counts = self.problem.potentials.counts
        write_checkpoint(
            self.checkpoint.path,
            {
                "request": self.checkpoint.identity,
                "state": self.request.method.pack(self.state),
                "infos": self.infos,
                "counts": dataclasses.asdict(counts),
            },
        )

    def _restored(self) -> Any:
        saved = None if self.checkpoint is None else self.checkpoint.saved()
        if saved is None:
            return None
        self.infos = saved["infos"]
        counts = self.problem.potentials.counts
        counts.passes, counts.evaluations = (
            saved["counts"]["passes"],
            saved["counts"]["evaluations"],
        )
        return self.request.method.unpack(saved["state"])


class _Clock:
    """Wall time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def phase(self, name: str) -> _Phase:
        return _Phase(self, name)


class _Phase:
    def __init__(self, clock: _Clock, name: str) -> None:
        self.clock, self.name = clock, name

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        elapsed = time.perf_counter() - self.started
        self.clock.seconds[self.name] = self.clock.seconds.get(self.name, 0.0) + elapsed
