"""The cost of a build, estimated in advance.

A construction's ``plan`` says how many passes and potentials its steps take, and a probe of one
block of rows how long a row takes to read and a potential to evaluate:

    CPU seconds ≈ passes · N · t_read + potentials · t_potential + products · t_product + 3 t_draw

A construction that solves on a pool of rows also says how often it multiplies the pool's matrix by
a vector (`PlannedFits`); the probe times one product. The probe also draws from the posterior of a
uniform subsample, as the first round of the build does, and so compiles what the build compiles.
Later posteriors and the programs of the passes take about twice as long again. Sampling the coreset
is not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from decoct.building.driver import Request
from decoct.constructions.base import Construction, PlannedFits, Problem, plan_of, uniform_selection
from decoct.data.arrays import ArrayRows
from decoct.data.base import DEFAULT_CHUNK, Chunk, Rows
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel, require_model
from decoct.passes.potentials import POTENTIALS_PER_CHUNK, Potentials, chunk_rows
from decoct.runtime.resources import few_threads, use_compilation_cache
from decoct.samplers.base import Sampler
from decoct.stats.chains import GOOD_KHAT

CHECKING = 1
"""Passes in which a build only checks that the model can use the rows."""

STREAMED_BLOCKS = 8
"""Blocks of a streamed table at once: read ahead, decoded, encoded and on the device."""

PROBE_DRAWS = 256
"""Draws at which the probe evaluates potentials."""

DRAWINGS = 3.0
"""Total time of drawing and compiling, in units of the first drawing with its compiling."""

NEWTON_PASSES, WEIGHTED_DRAWS = 10, 1000
"""What Laplace with importance weights takes: derivatives of all rows, and draws to weight."""

PRODUCTS = 4
"""Products of the pool and a vector that are timed."""


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
    cpu_seconds
        What the build is likely to take on this machine, all cores together. Without compiling and
        fits for a construction whose ``Plan`` has no ``fits``.
    laplace_seconds
        CPU seconds of the Laplace approximation of all rows with importance weights, where the
        posterior of a subsample says that it would do; else None.
    peak_bytes
        Arrays in memory at once during the build, rows in memory included. The interpreter and its
        libraries take about 0.5 GB more.
    rows_per_second, potentials_per_second
        What the probe measured.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> decoct.estimate(model, rows, size=10).n_rows
    500
    """

    n_rows: int
    passes: tuple[int, int]
    likelihood_evaluations: tuple[float, float]
    cpu_seconds: float
    laplace_seconds: float | None
    peak_bytes: int
    rows_per_second: float
    potentials_per_second: float

    def __repr__(self) -> str:
        low, high = self.likelihood_evaluations
        words = (
            f"{self.n_rows:,} rows: {_range(*self.passes)} passes, "
            f"{_range(round(low), round(high))} full-data likelihood evaluations, about "
            f"{self.cpu_seconds:.2g} CPU s, {self.peak_bytes / 1e9:.2g} GB of arrays.\n"
            f"Measured: {self.rows_per_second:.2g} rows read and {self.potentials_per_second:.2g} "
            "potentials evaluated a CPU second."
        )
        if self.laplace_seconds is not None:
            words += (
                "\nThe posterior of a subsample is close to normal: the Laplace approximation of "
                f"all rows with importance weights may do, and takes about "
                f"{self.laplace_seconds:.2g} CPU s (decoct.laplace)."
            )
        return words


def estimate(
    model: AbstractModel,
    rows: Rows | Any,
    *,
    size: int | None = None,
    kl: float | None = None,
    method: Construction | None = None,
    sampler: Sampler | None = None,
) -> Estimate:
    """Estimate what `decoct.build` with these arguments costs, from a probe of some seconds.

    The build need not compile again what the probe compiles.

    Parameters
    ----------
    model, rows, size, kl, method, sampler
        As for `build`.

    Returns
    -------
    Estimate
        Passes, evaluations, CPU seconds and memory; it prints as a sentence.

    Raises
    ------
    DecoctError
        The request, the model or the table cannot be used. What only a pass over all rows finds is
        left to `build`.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(5000, 3)), "y": np.arange(5000) % 2}
    >>> cost = decoct.estimate(decoct.models.LogisticRegression(), rows, size=50)
    >>> cost.n_rows, cost.passes[0]
    (5000, 1)
    """
    use_compilation_cache()
    require_model(model)
    request = Request.checked(size=size, kl=kl, method=method, sampler=sampler, seed=0)
    source = as_rows(rows)
    sizes = request.sizes_for(source.n_rows)
    table = encoded(source, model)
    potentials = Potentials(model, table)
    problem = Problem(potentials, request.sampler, sizes, request.kl)
    plan = plan_of(request.method, problem)
    if plan is None:
        raise RequestError(
            f"{type(request.method).__name__} does not say what it costs: it has no method plan()."
        )
    passes = plan.passes
    block = _block(table)
    read = _reading_seconds(table) / block.n_rows
    evaluated = _potential_seconds(potentials, block)
    n = source.n_rows
    fits, laplace = plan.fits, None
    if fits is None:
        seconds = (np.sqrt(passes[0] * passes[1]) + CHECKING) * n * read
        seconds += np.sqrt(plan.evaluations[0] * plan.evaluations[1]) * evaluated
    else:
        seconds = (fits.passes + CHECKING) * n * read + fits.evaluations * evaluated
        drawing, is_normal = _drawing_seconds(problem, fits)
        seconds += fits.products * _product_seconds(fits.shape) + DRAWINGS * drawing
        if is_normal:
            reading = (NEWTON_PASSES + 1) * n * read
            newton = NEWTON_PASSES * n * _curvature_seconds(potentials, block)
            laplace = reading + newton + n * WEIGHTED_DRAWS * evaluated
    return Estimate(
        n,
        passes,
        (plan.evaluations[0] / n, plan.evaluations[1] / n),
        float(seconds),
        laplace,
        plan.array_bytes + _working_bytes(table, block),
        1.0 / read,
        1.0 / evaluated,
    )


def _block(table: EncodedRows) -> Chunk:
    with closing(table.chunks(min(DEFAULT_CHUNK, table.n_rows))) as chunks:
        return next(chunks)


def _reading_seconds(table: EncodedRows) -> float:
    """Time the reading and encoding of the first block."""
    return _measure_seconds(lambda: _block(table))


def _potential_seconds(potentials: Potentials, block: Chunk) -> float:
    """Time a potential on the first rows."""
    rng = np.random.default_rng(0)
    start = potentials.space.flatten(potentials.initial)
    draws = start + 0.01 * rng.standard_normal((PROBE_DRAWS, potentials.dim))
    few = _first_rows(potentials, block)
    return _measure_seconds(lambda: few.totals(draws)) / (few.n_rows * PROBE_DRAWS)


def _curvature_seconds(potentials: Potentials, block: Chunk) -> float:
    """Time value, gradient and Hessian of a row's potential."""
    start = potentials.space.flatten(potentials.initial)
    few = _first_rows(potentials, block)
    return _measure_seconds(lambda: few.curvature(start)) / few.n_rows


def _measure_seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of a call whose files are open and whose programs are compiled."""
    call()
    started = time.process_time()
    call()
    return time.process_time() - started


def _first_rows(potentials: Potentials, block: Chunk) -> Potentials:
    few = block.piece(0, min(block.n_rows, chunk_rows(PROBE_DRAWS)))
    return Potentials(potentials.model, ArrayRows(few.columns))


def _drawing_seconds(problem: Problem, fits: PlannedFits) -> tuple[float, bool]:
    """Time the first drawing, and say whether the Laplace approximation serves there.

    The posterior is that of a uniform subsample that has the weight of the whole table.
    """
    started = time.process_time()
    subsample = uniform_selection(jax.random.key(0), problem, fits.reference)
    draws = problem.draw(jax.random.key(1), subsample, fits.draws)
    seconds = time.process_time() - started
    return seconds, draws.sampler == "laplace" and draws.info.get("khat", np.inf) < GOOD_KHAT


def _product_seconds(shape: tuple[int, int]) -> float:
    """Time the product of the pool's matrix and a vector."""
    matrix, vector = np.ones(shape), np.ones(shape[1])
    with few_threads(matrix.nbytes):
        started = time.process_time()
        for _ in range(PRODUCTS):
            np.dot(matrix, vector)
        return (time.process_time() - started) / PRODUCTS


def _working_bytes(table: EncodedRows, block: Chunk) -> int:
    """Return what rows and potentials take: a table in memory whole, a streamed one a few blocks.

    A table in memory counts twice: as it is, and encoded.
    """
    encoded_bytes = sum(column.nbytes for column in block.columns.values()) / block.n_rows
    in_memory = isinstance(table.raw, ArrayRows)
    n_rows = 2 * table.n_rows if in_memory else STREAMED_BLOCKS * block.n_rows
    return int(n_rows * encoded_bytes) + 3 * 8 * POTENTIALS_PER_CHUNK


def _range(low: float, high: float) -> str:
    few, many = (f"{x:,}" if isinstance(x, int) else f"{x:,.2g}" for x in (low, high))
    return few if few == many else f"{few} to {many}"
