"""Requests of builds, and the loop that every construction runs in.

The loop has rounds, progress, checkpoints and the report.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Construction, Problem, plan_of
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset
from decoct.data.base import Rows, name_files
from decoct.data.base import fingerprint as table_fingerprint
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.tables import counted_rows, traffic
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError, ShortBuildWarning
from decoct.models.base import AbstractModel, require_model
from decoct.passes.potentials import Counts, Potentials
from decoct.report import Report, Status, described
from decoct.runtime.checks import checked_whole, is_positive
from decoct.runtime.progress import ProgressBar, begin
from decoct.runtime.randomness import check_seed
from decoct.runtime.resources import few_threads, keep_buffers, use_compilation_cache
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler

DEFAULT_KL = 0.01
"""KL in nats to reach where neither a size nor a KL is asked for."""

LARGEST_KL_SIZE = 1000
"""Most rows a ``kl`` build keeps unless the method's ``max_size`` says otherwise."""


def check_sizes(sizes: Any) -> tuple[int, ...]:
    """Return the sizes of several coresets in ascending order, without repeats."""
    if np.ndim(sizes) != 1 or not len(sizes):
        raise RequestError(
            f"sizes must be a list of at least one size, such as [50, 100], not {sizes!r}."
        )
    return tuple(sorted({checked_whole("sizes", one, 0) for one in sizes}))


@dataclass(frozen=True)
class Request:
    """The request; see `build` for the parameters."""

    size: int | None
    kl: float | None
    method: Construction
    sampler: Sampler
    seed: int
    sizes: tuple[int, ...]

    @classmethod
    def checked(cls, *, size, kl, method, sampler, seed) -> Request:
        """Refuse a contradictory request."""
        method = IteratedHilbert() if method is None else method
        sampler = Automatic() if sampler is None else sampler
        name, certifies = type(method).__name__, getattr(method, "certifies", False)
        if size is not None and kl is not None:
            raise RequestError("Give either size= (rows to keep) or kl= (nats to reach), not both.")
        if size is not None:
            size = checked_whole("size", size, 0)
        elif kl is not None:
            if not is_positive(kl):
                raise RequestError(f"kl must be a positive number of nats, not {kl!r}.")
            kl = float(kl)
        elif certifies:
            kl = DEFAULT_KL
        else:
            raise RequestError(f"{name} takes size=, the rows to keep; give it.")
        if isinstance(method, type) or not hasattr(method, "step"):
            raise RequestError(
                f"method must be a construction such as IteratedHilbert(), not {method!r}."
            )
        require_sampler(sampler)
        if size == 0 and not getattr(method, "site", False):
            raise RequestError(
                f"size is 0, but {name} has no site to stand for the rows; ask for at least 1 row."
            )
        if kl is not None and not certifies:
            raise RequestError(
                f"kl= needs a construction that certifies itself (IteratedHilbert); {name} takes "
                "size=."
            )
        return cls(size, kl, method, sampler, check_seed(seed), (size or 0,))

    def sizes_for(self, n_rows: int) -> tuple[int, ...]:
        """Return the sizes to fill for a table of N rows."""
        if self.kl is not None:
            most = getattr(self.method, "max_size", None) or LARGEST_KL_SIZE
            return (min(n_rows, most),)
        if self.sizes[-1] > n_rows:
            raise RequestError(
                f"size is {self.sizes[-1]} but the table has {n_rows} rows; ask for at most that."
            )
        return self.sizes

    def checkpoint_key(self, model: AbstractModel, rows: EncodedRows) -> dict[str, Any]:
        """Return what a checkpoint and a build that resumes from it share, in one pass."""
        from decoct.models.fingerprint import EXAMPLES, fingerprint

        examples = rows.take(np.arange(min(EXAMPLES, rows.n_rows)))
        return {
            "size": self.size,
            "kl": self.kl,
            "seed": self.seed,
            "method": repr(described(self.method)),
            "sampler": repr(described(self.sampler)),
            "model": repr(model.to_dict()),
            "n_rows": rows.n_rows,
            "columns": sorted(rows.columns),
            "table": table_fingerprint(rows.raw, model.columns or None),
            "values": fingerprint(model, examples),
        }


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
    """Compress the rows to a few weighted ones, and a site, that carry the posterior.

    Minimises KL(π_w‖π) over weights w ≥ 0 with at most ``size`` of them positive (Campbell &
    Beronov 2019, Eq. 5). A Gaussian site, a quadratic in the likelihood parameters, stands for
    all rows that are not kept; where it cannot, the weighted rows stand alone, and the report says
    why (`Report.no_site`). ``method=IteratedHilbert(site=False)`` asks for rows alone.

    Parameters
    ----------
    model
        A model of `decoct.models`, or `decoct.Model` from your own functions, or what
        `decoct.from_numpyro`, `decoct.from_pymc` and `decoct.from_bambi` return. Mixtures are
        built with `decoct.mixture.build`.
    rows
        Anything `decoct.rows` accepts.
    size
        Most rows to keep, 0 ≤ size ≤ N; 0 is a site alone.
    kl
        Instead of ``size``: grow until KL(π_w‖π), its Monte Carlo error included, is at most this
        many nats. With neither, 0.01.
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
        end. If it exists, the build resumes from it: request, model and table must be the same.
        No other build may use it meanwhile. A construction of one round, such as `Uniform`,
        starts again. One more pass over the rows takes the table's fingerprint.

    Returns
    -------
    Coreset
        ``.report.status`` says whether the request was met.

    Warns
    -----
    ShortBuildWarning
        The request was not met; the message is that of the status.

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
    request = Request.checked(size=size, kl=kl, method=method, sampler=sampler, seed=seed)
    return _only(run(model, rows, request, progress, checkpoint))


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
    """Return one coreset for each size, at the cost of one build.

    Parameters
    ----------
    model, rows, method, sampler, seed, progress
        As for `build`.
    sizes
        Sizes in any order. The coresets come in ascending order of size, without repeats.

    Returns
    -------
    list of Coreset

    Raises
    ------
    RequestError
        sizes is empty, or has something other than whole numbers of at least 0.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> [one.size <= 10 for one in decoct.path(model, rows, [5, 10])]
    [True, True]
    """
    wanted = check_sizes(sizes)
    options = {"kl": None, "method": method, "sampler": sampler, "seed": seed}
    requests = [Request.checked(size=size, **options) for size in wanted]
    return run(model, rows, replace(requests[-1], sizes=wanted), progress)


def resume(
    checkpoint: str | os.PathLike[str],
    model: AbstractModel,
    rows: Rows | Any,
    *,
    method: Construction | None = None,
    sampler: Sampler | None = None,
    progress: bool | None = None,
) -> Coreset:
    """Resume a build from its checkpoint; the result is that of an uninterrupted build.

    Parameters
    ----------
    checkpoint
        The file that ``build(..., checkpoint=...)`` left.
    model, rows, method, sampler, progress
        As for `build`; size, kl and seed are in the checkpoint.

    Returns
    -------
    Coreset
        What the uninterrupted build would have returned.

    Raises
    ------
    RequestError
        The checkpoint is missing, damaged, or of another model, method or table.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> decoct.resume("interrupted.npz", model, rows)
    Traceback (most recent call last):
    decoct.errors.RequestError: There is no checkpoint interrupted.npz.
    """
    from decoct.building.checkpoint import read_build

    found = read_build(checkpoint)["request"]
    size, kl, seed = found["size"], found["kl"], found["seed"]
    request = Request.checked(size=size, kl=kl, method=method, sampler=sampler, seed=seed)
    return _only(run(model, rows, request, progress, checkpoint))


def run(
    model: AbstractModel,
    rows: Rows | Any,
    request: Request,
    progress: bool | None,
    checkpoint: str | os.PathLike[str] | None = None,
    save: Callable[[Coreset], Any] | None = None,
) -> list[Coreset]:
    """Return a coreset for each size of a request.

    ``save`` gets the last coreset before the checkpoint is removed: one of the two always exists.
    """
    require_model(model)
    use_compilation_cache()
    keep_buffers()
    source, method = as_rows(rows), request.method
    key = jax.random.key(request.seed)
    with ExitStack() as stack:
        if checkpoint is not None:
            from decoct.building.checkpoint import reserve

            stack.enter_context(reserve(checkpoint))
        stack.enter_context(ProgressBar(progress))
        stack.enter_context(name_files(source))
        laps = [time.perf_counter()]
        sizes = request.sizes_for(counted_rows(source))
        begin("checking rows", source.n_rows)
        model.check(source)
        table = encoded(source, model)
        problem = Problem(Potentials(model, table), request.sampler, sizes, request.kl)
        asked: dict[str, Any] = {}
        if checkpoint is not None:
            begin("taking the table's fingerprint", source.n_rows)
            asked = request.checkpoint_key(model, table)

        def write() -> None:
            if checkpoint is not None:
                from decoct.building.checkpoint import write_checkpoint
                from decoct.building.packing import pack_state

                counts, packed = asdict(problem.potentials.counts), pack_state(method, state)
                content = {"request": asked, "state": packed, "infos": rounds, "counts": counts}
                write_checkpoint(checkpoint, content)

        laps.append(time.perf_counter())
        begin("preparing", source.n_rows)
        if checkpoint is not None and Path(checkpoint).exists():
            from decoct.building.checkpoint import read_build
            from decoct.building.packing import unpack_state

            found = read_build(checkpoint, asked)
            problem.potentials.counts = Counts(**found["counts"])
            state, rounds = unpack_state(method, found["state"]), found["infos"]
        else:
            state, rounds = method.init(jax.random.fold_in(key, 0), problem), []
            write()
        plan = plan_of(method, problem)
        stack.enter_context(few_threads(plan.array_bytes if plan is not None else 0))
        most = plan.evaluations[1] if plan is not None else None
        while method.status(problem, state) is Status.RUNNING:
            begin(_label(problem, method, most, rounds), source.n_rows)
            started = time.perf_counter()
            round_key = jax.random.fold_in(key, len(rounds) + 1)
            state, info = method.step(round_key, problem, state)
            rounds.append({**info.numbers, "seconds": round(time.perf_counter() - started, 3)})
            write()
        laps.append(time.perf_counter())
        begin("reading the kept rows", source.n_rows)
        chosen = method.path(state)
        kept = [table.take_raw(one.selection.indices) for one in chosen]
        laps.append(time.perf_counter())
        counts, status = problem.potentials.counts, method.status(problem, state)
        phases = zip(("encode", "rounds", "take rows"), np.diff(laps).tolist(), strict=True)
        report = Report(
            described(method),
            request.seed,
            status,
            request.size,
            request.kl,
            rounds,
            counts.passes,
            counts.evaluations,
            {name: round(value, 3) for name, value in phases},
            traffic=traffic(source),
            sampler=described(request.sampler),
        )
        coresets = []
        for (selection, kl), raw in zip(chosen, kept, strict=True):
            numbers, weights, _, site, start = selection
            numbers = numbers.astype(np.int64)
            its = replace(report, status=status.with_kl(kl), predicted_kl=kl)
            if site is not None and its.no_site:  # that is of another size
                last = {name: one for name, one in rounds[-1].items() if name != "no_site"}
                its = replace(its, rounds=[*rounds[:-1], last])
            coresets.append(Coreset(numbers, weights, raw, source.n_rows, model, its, site, start))
        if save is not None:
            save(coresets[-1])
        if checkpoint is not None:
            Path(checkpoint).unlink(missing_ok=True)
    return coresets


def _only(coresets: list[Coreset]) -> Coreset:
    (coreset,) = coresets
    if not coreset.report.status.ok:
        says, reason = coreset.report.status.value, coreset.report.no_site
        says += f" There is no site: {reason}." if reason else ""
        warnings.warn(says, ShortBuildWarning, stacklevel=3)
    return coreset


def _label(
    problem: Problem, method: Construction, most: float | None, rounds: list[dict[str, Any]]
) -> str:
    """Return the round and the most time that all rounds will take, for the progress bar."""
    label, steps = f"round {len(rounds) + 1}", getattr(method, "steps", None)
    if steps is not None:
        label += f" of {max(len(rounds) + 1, steps(problem))}"
    done = problem.potentials.counts.evaluations
    if most is None or not rounds or not done:
        return label
    left = max(most / done - 1.0, 0.0) * sum(one["seconds"] for one in rounds)
    return f"{label} (all: {timedelta(seconds=round(left))} at most)"
