"""What a build will cost, before it is begun.

A construction says how many passes and potentials its steps take (`Construction.plan`); a probe of
one block of rows says how long a row takes to read and a potential to evaluate:

    seconds ≈ passes · N · t_read + potentials · t_potential

The fits on the pool and the compiling of programs are not in it, for they do not grow with N, nor
is sampling the coreset, which is no part of a build.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoct.compilation import use_compilation_cache
from decoct.constructions.base import Construction, Problem
from decoct.data.arrays import ArrayRows
from decoct.data.base import DEFAULT_CHUNK, Chunk, Rows
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.models.fitted import FittedModel, require_model
from decoct.posteriors.base import Sampler
from decoct.potentials import POTENTIALS_PER_CHUNK, Potentials, chunk_rows
from decoct.request import Request

CHECKING = 1
"""Passes in which a build only looks whether the model can use the rows."""

STREAMED_BLOCKS = 8
"""Blocks of a streamed table at once: read ahead, decoded, encoded and on the device."""

PROBE_DRAWS = 256
"""Draws at which the probe evaluates potentials."""


@dataclass(frozen=True)
class Estimate:
    """Cost of a build; pairs are the least and the most.

    Attributes
    ----------
    n_rows
        N.
    passes
        Passes over all rows.
    likelihood_evaluations
        Potentials evaluated, divided by N: evaluations of the full-data likelihood at one θ.
    seconds
        Wall time of those passes on this machine, compilation and fits on few rows left out.
    peak_bytes
        Arrays held at once by the build, rows in memory included; the interpreter and its
        libraries take about 0.5 GB besides.
    rows_per_second, potentials_per_second
        What the probe measured.
    """

    n_rows: int
    passes: tuple[int, int]
    likelihood_evaluations: tuple[float, float]
    seconds: tuple[float, float]
    peak_bytes: int
    rows_per_second: float
    potentials_per_second: float

    def __repr__(self) -> str:
        low, high = self.likelihood_evaluations
        return (
            f"{self.n_rows:,} rows: {_range(*self.passes)} passes, "
            f"{_range(round(low), round(high))} full-data likelihood evaluations, "
            f"{_range(*self.seconds)} s, {self.peak_bytes / 1e9:.2g} GB of arrays.\n"
            f"Measured: {self.rows_per_second:.2g} rows read and {self.potentials_per_second:.2g} "
            "potentials evaluated a second.\n"
            "Not in the seconds: compiling (once a model), fits on the kept rows, and sampling the "
            "coreset afterwards."
        )


def estimate(
    model: AbstractModel | FittedModel,
    rows: Rows | Any,
    *,
    size: int | None = None,
    kl: float | None = None,
    method: Construction | None = None,
    posterior: Sampler | None = None,
) -> Estimate:
    """Say what `decoct.build` with these arguments will cost, from a probe of some seconds.

    Parameters
    ----------
    model, rows, size, kl, method, posterior
        As for `build`.

    Raises
    ------
    DecoctError
        The request, the model or the table cannot be used. What only a walk over all rows finds is
        left to `build`.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(5000, 3)), "y": np.arange(5000) % 2}
    >>> cost = decoct.estimate(decoct.models.LogisticRegression(), rows, size=50)
    >>> cost.passes
    (1, 4)
    """
    use_compilation_cache()
    require_model(model)
    fit_passes = 0
    if isinstance(model, FittedModel):
        method = model.default_method() if method is None else method
        model, fit_passes = model.table_model(method), model.fit_passes()
    request = Request.checked(size=size, kl=kl, method=method, posterior=posterior, seed=0)
    source = as_rows(rows)
    sizes = request.sizes_for(source.n_rows)
    table = encoded(source, model)
    potentials = Potentials(model, table)
    problem = Problem(potentials, request.posterior, sizes, request.kl)
    if not hasattr(request.method, "plan"):
        raise RequestError(
            f"{type(request.method).__name__} does not say what it costs: it has no method plan()."
        )
    plan = request.method.plan(problem)
    passes = (plan.passes[0] + fit_passes, plan.passes[1] + fit_passes)
    block = _block(table)
    read = _reading_seconds(table) / block.n_rows
    evaluated = _potential_seconds(potentials, block)
    n = source.n_rows
    low, high = (
        (each + CHECKING) * n * read + count * evaluated
        for each, count in zip(passes, plan.evaluations, strict=True)
    )
    return Estimate(
        n,
        passes,
        (plan.evaluations[0] / n, plan.evaluations[1] / n),
        (low, high),
        plan.array_bytes + _working_bytes(table, block),
        1.0 / read,
        1.0 / evaluated,
    )


def _block(table: EncodedRows) -> Chunk:
    with closing(table.chunks(min(DEFAULT_CHUNK, table.n_rows))) as chunks:
        return next(chunks)


def _reading_seconds(table: EncodedRows) -> float:
    """Time the reading and encoding of the first block, files opened and caches warm."""
    _block(table)
    started = time.perf_counter()
    _block(table)
    return time.perf_counter() - started


def _potential_seconds(potentials: Potentials, block: Chunk) -> float:
    """Time a potential on the first rows, compiled and warm."""
    rng = np.random.default_rng(0)
    start = potentials.space.flatten(potentials.initial)
    draws = start + 0.01 * rng.standard_normal((PROBE_DRAWS, potentials.dim))
    few = block.piece(0, min(block.n_rows, chunk_rows(PROBE_DRAWS)))
    counted = Potentials(potentials.model, ArrayRows(few.columns))
    counted.totals(draws)
    started = time.perf_counter()
    counted.totals(draws)
    return (time.perf_counter() - started) / (few.n_rows * PROBE_DRAWS)


def _working_bytes(table: EncodedRows, block: Chunk) -> int:
    """Return what rows and potentials take: a table in memory whole, a streamed one a few blocks.

    A table in memory is held as it is and encoded.
    """
    encoded_bytes = sum(column.nbytes for column in block.columns.values()) / block.n_rows
    in_memory = isinstance(table.raw, ArrayRows)
    held = 2 * table.n_rows if in_memory else STREAMED_BLOCKS * block.n_rows
    return int(held * encoded_bytes) + 3 * 8 * POTENTIALS_PER_CHUNK


def _range(low: float, high: float) -> str:
    few, many = (f"{x:,}" if isinstance(x, int) else f"{x:,.2g}" for x in (low, high))
    return few if few == many else f"{few} to {many}"
