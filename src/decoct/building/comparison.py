"""Constructions side by side on the user's own model and rows: KL and cost against size.

Every method is built once, at all sizes. One pass evaluates all rows at the draws of all coreset
posteriors, which are then judged as by `decoct.check` (`stats.verdict`):

    KL(π_w‖π) = log mean e^D − mean D,   D_s = Σ_n f_n(θ_s) − s(θ_s) − Σ w_n f_n(θ_s),

and the draws that importance weights leave. Uniform subsampling is always among the methods. The
Laplace approximation of the full posterior is the alternative without rows: its KL is that of the
uncorrected approximation, its ESS that after importance correction.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from decoct.building.driver import check_sizes, path
from decoct.certificates.certificate import log_ratios_at
from decoct.constructions import Construction, IteratedHilbert, Uniform
from decoct.constructions.base import entries
from decoct.constructions.hilbert.weighting import FullLaplace
from decoct.coreset import Coreset
from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import DecoctError, RequestError, RowsError
from decoct.models.base import AbstractModel, require_model
from decoct.passes.potentials import Potentials
from decoct.runtime.checks import checked_whole
from decoct.runtime.progress import ProgressBar, begin
from decoct.runtime.randomness import host_rng
from decoct.runtime.text import text_table
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler
from decoct.stats.divergences import Gaussian
from decoct.stats.verdict import is_known, judge

LAPLACE = "Laplace + PSIS"


def standard_methods() -> dict[str, Construction]:
    """Return the constructions that are compared unless others are asked for."""
    methods = entries().values()
    found = {one.compared_as: one.make() for one in methods if one.compared_as is not None}
    return {**found, "rows alone": IteratedHilbert(site=False)}


@dataclass(frozen=True)
class Line:
    """One method at one size.

    Attributes
    ----------
    method
        Its name.
    size, rows
        Rows asked for, and kept; None for a method that keeps none.
    kl, kl_se
        KL(π_w‖π) in nats at draws of π_w, and its Monte Carlo error; before any correction, for
        "Laplace + PSIS" too.
    khat
        Pareto k-hat of the ratios π/π_w.
    ess
        Effective draws after importance correction towards π, out of those at which the KL was
        measured. Trust it where k-hat is below 0.7.
    seconds
        Time of the build of all sizes.
    evaluations
        Potentials of that build, divided by N.
    kl_low, kl_high
        A 95 % interval of KL(π_w‖π); at a k-hat of 0.7 and more ``kl_low`` is a lower bound, all
        that is known, and ``kl_high`` infinite.
    note
        Why there are no figures, if there are none.
    """

    method: str
    size: int | None = None
    rows: int | None = None
    kl: float | None = None
    kl_se: float | None = None
    khat: float | None = None
    ess: float | None = None
    seconds: float | None = None
    evaluations: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    note: str = ""

    @property
    def kl_is_known(self) -> bool:
        """Whether ``kl`` estimates the divergence, and ``kl_low`` is not all that is known."""
        return self.kl is not None and self.khat is not None and is_known(self.kl, self.khat)


@dataclass(frozen=True)
class Comparison:
    """Constructions side by side.

    Attributes
    ----------
    lines
        One for each method and size.
    n_rows
        N.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> result = decoct.compare(model, rows, [10], methods={}, draws=100)
    >>> result.to_pandas()["method"].tolist()
    ['uniform', 'Laplace + PSIS']
    """

    lines: tuple[Line, ...]
    n_rows: int

    def to_pandas(self) -> Any:
        """Return the lines as a pandas DataFrame."""
        import pandas as pd

        whole = {"size": "Int64", "rows": "Int64"}  # with holes: some methods keep no rows
        return pd.DataFrame([asdict(line) for line in self.lines]).astype(whole)

    def __repr__(self) -> str:
        heads = ("method", "rows", "KL, nats", "k-hat", "ESS", "seconds", "likelihoods")
        return text_table([heads, *map(_cells, self.lines)], "<>>>>>>")


def _cells(line: Line) -> tuple[str, ...]:
    if line.kl is None:
        return (line.method, line.note)
    return (
        line.method,
        "–" if line.rows is None else f"{line.rows:,}",
        f"{line.kl:.2g} ± {line.kl_se:.1g}" if line.kl_is_known else f"at least {line.kl_low:.2g}",
        f"{line.khat:.2f}",
        f"{line.ess:,.0f}",
        f"{line.seconds:.1f}",
        f"{line.evaluations:,.0f}",
    )


def compare(
    model: AbstractModel,
    rows: Rows | Any,
    sizes: Sequence[int],
    *,
    methods: Mapping[str, Construction] | None = None,
    sampler: Sampler | None = None,
    draws: int = 400,
    seed: int = 0,
    progress: bool | None = None,
) -> Comparison:
    """Compare constructions on this model and these rows.

    Parameters
    ----------
    model, rows
        As for `decoct.build`.
    sizes
        Rows to keep; 0 is a site alone, for methods that have one.
    methods
        Name -> construction; default `standard_methods`. Uniform is added if it is missing.
    sampler
        The sampler of every π_w; default `Automatic`.
    draws
        Draws of each coreset posterior that the KL is measured at; each costs N potentials.
    seed
        Seed of the builds and the draws.
    progress
        Show progress on standard error; None shows it on a terminal.

    Returns
    -------
    Comparison
        The line of a method that refuses this model says why.

    Raises
    ------
    RequestError
        No size, or one that is not a whole number from 0 to N; fewer than two draws.
    RowsError
        The table lacks a column of the model, or the model refuses a value.
    DecoctError
        Nothing can be compared; what the first method said.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(2000, 2))
    >>> rows = {"x": x, "y": rng.random(2000) < 1 / (1 + np.exp(-x[:, 0]))}
    >>> methods = {"IteratedHilbert": decoct.constructions.IteratedHilbert()}
    >>> model = decoct.models.LogisticRegression()
    >>> result = decoct.compare(model, rows, [10], methods=methods, draws=100)
    >>> [line.method for line in result.lines]
    ['uniform', 'IteratedHilbert', 'Laplace + PSIS']
    """
    require_model(model)
    checked_whole("draws", draws, 2)
    wanted = standard_methods() if methods is None else dict(methods)
    if not any(isinstance(method, Uniform) for method in wanted.values()):
        wanted = {"uniform": Uniform(), **wanted}
    source = as_rows(rows)
    asked = check_sizes(sizes)
    if asked[-1] > source.n_rows:
        raise RequestError(
            f"sizes has {asked[-1]} but the table has {source.n_rows} rows; ask for at most that."
        )
    sampler = Automatic() if sampler is None else sampler
    table = encoded(source, model)
    options = {"sampler": sampler, "seed": seed, "progress": progress}
    entries: list[_Entry] = []
    for name, method in wanted.items():
        entries += _build(name, model, source, asked, {"method": method, **options}, draws)
    with ProgressBar(progress):
        potentials = Potentials(model, table)
        entries.append(_laplace(potentials, jax.random.key(seed), draws))
        drawn = [entry for entry in entries if entry.z is not None]
        if not drawn:
            raise next(entry.error for entry in entries if entry.error is not None)
        begin("evaluating all rows", table.n_rows)
        everywhere = np.concatenate([one.z for one in entries if one.z is not None])
        totals = potentials.totals(everywhere)
    for entry, total in zip(drawn, np.split(totals, len(drawn)), strict=True):
        entry.judge(potentials, total)
    return Comparison(tuple(entry.line for entry in entries), source.n_rows)


@dataclass
class _Entry:
    """A line, and what its figures come from: draws of a coreset's posterior or of a Gaussian."""

    line: Line
    source: Coreset | Gaussian | None = None
    z: Float[np.ndarray, "S d"] | None = None
    error: DecoctError | None = None

    def judge(self, potentials: Potentials, totals: Float[np.ndarray, " S"]) -> None:
        """Turn the totals at the draws into figures."""
        assert self.source is not None
        assert self.z is not None
        if isinstance(self.source, Coreset):
            ratios = log_ratios_at(self.source, potentials, self.z[None], totals)
        else:
            own = self.source.log_density(self.z)
            ratios = (totals - own + potentials.log_prior(self.z))[None]
        found = judge(ratios)
        self.line = replace(
            self.line,
            kl=found.kl.reverse,
            kl_se=found.kl.reverse_se,
            kl_low=found.kl.reverse_low,
            kl_high=found.kl.reverse_high,
            khat=found.khat,
            ess=found.ess,
        )

    def give_up(self, error: DecoctError) -> _Entry:
        """Leave the line without figures, and say why."""
        self.line, self.error = replace(self.line, note=str(error)), error
        return self


def _build(
    name: str,
    model: AbstractModel,
    source: Rows,
    sizes: tuple[int, ...],
    options: dict[str, Any],
    draws: int,
) -> list[_Entry]:
    """Build coresets, and draw from them with random numbers that only the size determines."""
    if not getattr(options["method"], "site", False):
        sizes = tuple(size for size in sizes if size)  # 0 is a site alone
    if not sizes:
        return []
    started = time.perf_counter()
    try:
        coresets = path(model, source, sizes, **options)
    except RowsError:
        raise
    except DecoctError as error:
        return [_Entry(Line(name)).give_up(error)]
    seconds = time.perf_counter() - started
    entries = []
    for size, coreset in zip(sizes, coresets, strict=True):
        evaluations = coreset.report.evaluations / coreset.n_rows
        line = Line(name, size, coreset.size, seconds=seconds, evaluations=evaluations)
        entry = _Entry(line, coreset)
        key = jax.random.fold_in(jax.random.key(options["seed"] + 1), size)
        try:
            entry.z = options["sampler"].draw(key, coreset.density, draws).flat[:draws]
        except DecoctError as error:
            entry.give_up(error)
        entries.append(entry)
    return entries


def _laplace(potentials: Potentials, key: jax.Array, draws: int) -> _Entry:
    started, before = time.perf_counter(), potentials.counts.evaluations
    try:
        gaussian = FullLaplace().gaussian(key, potentials)
    except RowsError:
        raise
    except DecoctError as error:
        return _Entry(Line(LAPLACE)).give_up(error)
    evaluations = (potentials.counts.evaluations - before) / potentials.n_rows
    seconds = time.perf_counter() - started
    line = Line(LAPLACE, seconds=seconds, evaluations=evaluations)
    return _Entry(line, gaussian, gaussian.sample(host_rng(key), draws))
