"""Constructions side by side on the user's own model and rows: KL and cost against size.

Every method is built once, at all sizes. Draws of every coreset posterior are then evaluated on all
rows in one shared pass, and judged as `decoct.check` judges them:

    KL(π_w‖π) = log mean e^D − mean D,   D_s = Σ_n f_n(θ_s) − Σ w_n f_n(θ_s).

Uniform subsampling is always among them. The Laplace approximation of the full posterior is the
alternative that keeps no rows; corrected by Pareto-smoothed importance sampling its draws count as
the posterior's as long as k-hat is below 0.7.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions import (
    Construction,
    Hilbert,
    IteratedHilbert,
    MomentMatching,
    Sensitivity,
    SparseVI,
    Uniform,
)
from decoct.coreset import Coreset, FittedModel
from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.diagnostics.chains import smoothed_log_weights
from decoct.diagnostics.divergences import kl_from_log_ratios
from decoct.driver import path
from decoct.errors import DecoctError, RequestError
from decoct.models.base import AbstractModel
from decoct.posteriors.automatic import Automatic
from decoct.posteriors.base import Sampler
from decoct.potentials import Potentials
from decoct.progress import ProgressBar
from decoct.randomness import host_rng
from decoct.solvers import GIGA
from decoct.weighting import FullLaplace

LAPLACE = "Laplace + PSIS"

CANDIDATES = 2000
"""Rows among which SparseVI chooses at a time."""


def standard_methods() -> dict[str, Construction]:
    """Return the constructions that are compared unless others are asked for."""
    return {
        "uniform": Uniform(),
        "sensitivity": Sensitivity(),
        "GIGA": Hilbert(GIGA()),
        "SparseVI": SparseVI(subsample=CANDIDATES),
        "moment matching": MomentMatching(),
        "IteratedHilbert": IteratedHilbert(),
    }


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
        KL(π_w‖π) in nats at draws of π_w, and its Monte Carlo error.
    khat
        Pareto k-hat of the ratios π/π_w: above 0.7 the KL is no more than an order of magnitude.
    seconds
        Of the one build that answers every size.
    evaluations
        Potentials of that build, divided by N.
    note
        Why there are no figures, if there are none.
    """

    method: str
    size: int | None
    rows: int | None
    kl: float | None
    kl_se: float | None
    khat: float | None
    seconds: float | None
    evaluations: float | None
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Constructions side by side.

    Attributes
    ----------
    lines
        One for each method and size.
    n_rows
        N.
    """

    lines: tuple[Line, ...]
    n_rows: int

    def to_pandas(self) -> Any:
        """Return the lines as a pandas DataFrame."""
        import pandas as pd

        whole = {"size": "Int64", "rows": "Int64"}  # with holes: some methods keep no rows
        return pd.DataFrame([asdict(line) for line in self.lines]).astype(whole)

    def plot(self) -> Any:
        """Draw KL against size, and KL against the seconds of the build.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        RequestError
            matplotlib is missing.
        """
        from decoct.plots.compared import compared

        return compared(self)

    def __repr__(self) -> str:
        heads = ("method", "rows", "KL, nats", "k-hat", "seconds", "likelihoods")
        cells = [heads, *(_cells(line) for line in self.lines)]
        widths = [max(len(line[i]) for line in cells if len(line) > 2) for i in range(len(heads))]
        written = []
        for line in cells:
            if len(line) == 2:
                written.append(f"{line[0]:<{widths[0]}}  {line[1]}")
                continue
            rest = (f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
            written.append("  ".join([f"{line[0]:<{widths[0]}}", *rest]))
        return "\n".join(written)


def _cells(line: Line) -> tuple[str, ...]:
    if line.kl is None:
        return (line.method, line.note)
    return (
        line.method,
        "–" if line.rows is None else f"{line.rows:,}",
        f"{line.kl:.2g} ± {line.kl_se:.1g}",
        f"{line.khat:.2f}",
        f"{line.seconds:.1f}",
        f"{line.evaluations:,.0f}",
    )


def compare(
    model: AbstractModel,
    rows: Rows | Any,
    sizes: Sequence[int],
    *,
    methods: Mapping[str, Construction] | None = None,
    posterior: Sampler | None = None,
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
        Rows to keep.
    methods
        Name -> construction; default `standard_methods`. Uniform is added if it is missing.
    posterior
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
        A method that refuses this model or these rows has a line that says why.

    Raises
    ------
    RequestError
        No size, a size out of range, fewer than two draws.

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
    if isinstance(model, FittedModel):
        raise RequestError(
            f"A {type(model).__name__} has no density over parameters to compare posteriors by."
        )
    if draws < 2:
        raise RequestError(f"draws is {draws}; a KL needs at least 2.")
    wanted = standard_methods() if methods is None else dict(methods)
    if not any(isinstance(method, Uniform) for method in wanted.values()):
        wanted = {"uniform": Uniform(), **wanted}
    source = as_rows(rows)
    asked = tuple(sorted(set(sizes)))
    if not asked or asked[-1] > source.n_rows:
        raise RequestError(
            f"sizes must be numbers of rows from 1 to {source.n_rows:,}, not {list(sizes)}."
        )
    sampler = Automatic() if posterior is None else posterior
    entries: list[_Entry] = []
    for name, method in wanted.items():
        entries += _built(name, model, source, asked, method, posterior, seed, progress)
    table = encoded(source, model)
    with ProgressBar(progress) as bar:
        potentials = Potentials(model, table, bar.advance)
        for number, entry in enumerate(entries):
            entry.look(sampler, jax.random.key(seed + 1), number, draws)
        entries.append(_laplace(potentials, jax.random.key(seed), draws))
        looked = [entry for entry in entries if entry.z is not None]
        bar.begin("judging", table.n_rows)
        everywhere = np.concatenate([one.z for one in entries if one.z is not None])
        totals = potentials.totals(everywhere)
    for entry, total in zip(looked, np.split(totals, len(looked)), strict=True):
        entry.judge(potentials, total)
    return Comparison(tuple(entry.line for entry in entries), source.n_rows)


class _Entry:
    """A line in the making: its draws, and their log density without the potentials of all rows."""

    def __init__(self, line: Line, coreset: Coreset | None = None) -> None:
        self.line, self.coreset = line, coreset
        self.z: Float[np.ndarray, "S d"] | None = None
        self.known: Float[np.ndarray, " S"] | None = None

    def look(self, sampler: Sampler, key: jax.Array, number: int, draws: int) -> None:
        """Draw from π_w."""
        if self.coreset is None:
            return
        try:
            drawn = sampler.draw(jax.random.fold_in(key, number), self.coreset.density, draws)
        except DecoctError as error:
            self._give_up(str(error))
            return
        self.z = drawn.flat[:draws]

    def judge(self, potentials: Potentials, totals: Float[np.ndarray, " S"]) -> None:
        """Turn the totals at the draws into figures."""
        assert self.z is not None
        if self.known is None:
            assert self.coreset is not None
            kept = potentials.model.encode(self.coreset.rows, self.coreset.indices)
            known = self.coreset.weights @ potentials.vectors(dict(kept), self.z)
        else:
            known = self.known - potentials.log_prior(self.z)
        ratios = totals - known
        kl = kl_from_log_ratios(ratios)
        khat = smoothed_log_weights(ratios)[1]
        figures = {"kl": kl.reverse, "kl_se": kl.reverse_se, "khat": khat}
        self.line = Line(**{**asdict(self.line), **figures})

    def _give_up(self, note: str) -> None:
        self.line = Line(**{**asdict(self.line), "note": note})


def _built(
    name: str,
    model: AbstractModel,
    source: Rows,
    sizes: tuple[int, ...],
    method: Construction,
    posterior: Sampler | None,
    seed: int,
    progress: bool | None,
) -> list[_Entry]:
    started = time.perf_counter()
    try:
        coresets = path(
            model, source, sizes, method=method, posterior=posterior, seed=seed, progress=progress
        )
    except DecoctError as error:
        return [_Entry(Line(name, None, None, None, None, None, None, None, str(error)))]
    seconds = time.perf_counter() - started
    return [
        _Entry(
            Line(
                name,
                size,
                coreset.size,
                None,
                None,
                None,
                seconds,
                coreset.report.evaluations / coreset.n_rows,
            ),
            coreset,
        )
        for size, coreset in zip(sizes, coresets, strict=True)
    ]


def _laplace(potentials: Potentials, key: jax.Array, draws: int) -> _Entry:
    started, before = time.perf_counter(), potentials.counts.evaluations
    nothing = Line(LAPLACE, None, None, None, None, None, None, None)
    try:
        gaussian = FullLaplace().gaussian(key, potentials)
    except DecoctError as error:
        entry = _Entry(nothing)
        entry._give_up(str(error))
        return entry
    evaluations = (potentials.counts.evaluations - before) / potentials.n_rows
    figures = {"seconds": time.perf_counter() - started, "evaluations": evaluations}
    entry = _Entry(Line(**{**asdict(nothing), **figures}))
    entry.z = gaussian.sample(host_rng(key), draws)
    entry.known = gaussian.log_density(entry.z)
    return entry
