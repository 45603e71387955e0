"""Coresets built apart, merged (Campbell & Broderick 2019, §4.3), and made smaller again.

Of C parts of a table, each with weighted rows and a site s_c,

    Σ_c (s_c + Σ_m w_cm f_cm)

is a coreset of the whole: rows are put together and sites add exactly. Parts may live on different
machines; only the coresets have to meet. With a size all rows are compressed once more, at the
posterior of all parts together (`decoct.streams.compress`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Construction, Selection
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.errors import DecoctError, ModelError, RequestError
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.fingerprint import find_difference, fingerprint
from decoct.report import Report
from decoct.runtime import progress
from decoct.runtime.checks import is_whole
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import checked_seed
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler
from decoct.stats.divergences import Gaussian
from decoct.status import Status
from decoct.streams.compress import (
    Compressed,
    add_predictions,
    add_sites,
    compress,
    join_columns,
)
from decoct.streams.drift import DRIFTED, distance, locate


def merge(
    coresets: Sequence[Coreset],
    size: int | None = None,
    *,
    method: Construction | None = None,
    sampler: Sampler | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Coreset:
    """Return the coreset of several tables laid end to end, from one coreset of each.

    Parameters
    ----------
    coresets
        In the order of the tables; all of one model, hyper-parameters included. A model of your own
        functions is compared by their values (`decoct.models.fingerprint`).
    size
        Most rows to keep; 0 for a site alone. None keeps every row and touches no weight.
    method
        How rows are compressed; default ``IteratedHilbert(site=True)``.
    sampler
        Draws from the parts and from all of them together; default `Automatic`.
    seed
        Seed of those draws.
    progress
        Show a progress bar; None shows it on a terminal.

    Returns
    -------
    Coreset
        Row numbers count on from table to table. The predicted KL is the sum of the parts' and of
        the compression's, as for independent errors. ``drift`` in the report's last round is how
        many sd of a part's posterior lie between that and the posterior of all parts, in the part
        and the coordinate or principal axis where it is most: 1 to 3 for parts cut at random.

    Warns
    -----
    UserWarning
        A part lies more than `DRIFTED` = 5 sd away, and not because of the parts' own errors: the
        status is `Status.DRIFTED`. Or ``sampler`` cannot draw from one. No KL is predicted then.

    Raises
    ------
    RequestError
        Nothing to merge, the models or columns differ, or ``size`` is no number of rows.
    RowsError
        The parts' responses have values that exclude each other, such as labels −1, 0 and 1.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> parts = [decoct.build(model, {"x": rng.normal(size=(500, 2))}, size=8) for _ in range(3)]
    >>> whole = decoct.merge(parts)
    >>> whole.n_rows, whole.size == sum(part.size for part in parts)
    (1500, True)
    >>> decoct.merge(parts, size=0).size  # a Gaussian likelihood is a quadratic
    0
    """
    parts, seed = _checked(coresets), checked_seed(seed)
    sampler = Automatic() if sampler is None else sampler
    require_sampler(sampler)
    if size is not None and not is_whole(size, 0):
        raise RequestError(f"size must be a whole number of rows, at least 0, not {size!r}.")
    union = _union(parts)
    union.model.check_values(union.model.distinct(ArrayRows(union.rows)))
    place_key, key = jax.random.split(jax.random.key(seed))
    with ProgressBar(progress):
        if len(parts) > 1:
            union = _with_drift(place_key, parts, union, sampler)
        if size is None or union.size <= size:
            return union
        encoded = union.model.encode(union.rows, union.indices)
        given = Selection(union.indices, union.weights, encoded, union.site)
        method = IteratedHilbert(site=True) if method is None else method
        found = compress(key, union.model, given, int(size), sampler, method)
    return _compressed(union, found, int(size), seed)


def _checked(coresets: Any) -> list[Coreset]:
    parts = list(coresets) if isinstance(coresets, list | tuple) else [None]
    if not all(isinstance(part, Coreset) for part in parts):
        raise RequestError("merge takes a list of coresets, one for each table.")
    if not parts:
        raise RequestError("There is nothing to merge; give at least one coreset.")
    if not isinstance(parts[0].model, AbstractModel):
        raise RequestError(
            f"A {type(parts[0].model).__name__} is fitted to the rows of its coreset, and has no "
            "posterior for those of several; put the rows and the weights of the coresets "
            "together, and fit it with fit(X, sample_weight=w)."
        )
    for number, part in enumerate(parts[1:], start=1):
        _require_alike(parts[0], part, number)
    return parts


def _require_alike(first: Coreset, other: Coreset, number: int) -> None:
    differs = _difference(first, other)
    if differs is not None:
        raise RequestError(
            f"Coreset {number} is of another model than coreset 0: {differs}; potentials of "
            "different models do not add up."
        )
    shapes, of_first = _shapes(other), _shapes(first)
    if shapes != of_first:
        raise RequestError(
            f"Coreset {number} has the columns {shapes} (name and shape of a row), coreset 0 "
            f"{of_first}; merge coresets of tables with the same columns."
        )


def _difference(first: Coreset, other: Coreset) -> str | None:
    """Return in what two models differ: their descriptions, or what their functions compute."""
    if first.model is other.model:
        return None
    one, two = (f"{type(c.model).__name__} {c.model.to_dict()}" for c in (first, other))
    if one != two:
        return f"{two} instead of {one}"
    ours = type(first.model).__module__.partition(".")[0] == "decoct"
    of_functions = not ours or first.model.to_dict()["kind"] in OF_FUNCTIONS
    if not of_functions or _shapes(first) != _shapes(other):
        return None
    example = first if first.size else other
    if not example.size:
        return None
    try:
        known = fingerprint(first.model, first.model.encode(example.rows, example.indices))
        return find_difference(
            known, other.model, other.model.encode(example.rows, example.indices)
        )
    except (DecoctError, KeyError, TypeError, ValueError, IndexError) as error:
        return f"it cannot be evaluated on the same rows ({error})"


def _shapes(coreset: Coreset) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(values)[1:] for name, values in coreset.rows.items()}


def _union(parts: Sequence[Coreset]) -> Coreset:
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    indices = [part.indices + start for part, start in zip(parts, starts[:-1], strict=True)]
    return Coreset(
        np.concatenate(indices),
        np.concatenate([part.weights for part in parts]),
        join_columns([{n: np.asarray(v) for n, v in part.rows.items()} for part in parts]),
        int(starts[-1]),
        parts[0].model,
        _report([part.report for part in parts]),
        add_sites([part.site for part in parts]),
    )


def _report(reports: list[Report]) -> Report:
    sizes = [one.size_asked for one in reports]
    phases = {phase for one in reports for phase in one.seconds}
    return Report(
        {"name": "merge", "parts": [one.method for one in reports]},
        reports[0].seed,
        _worst([one.status for one in reports]),
        None if None in sizes else sum(size for size in sizes if size is not None),
        None,
        [{"parts": len(reports)}],
        sum(one.passes for one in reports),
        sum(one.evaluations for one in reports),
        {p: round(sum(one.seconds.get(p, 0.0) for one in reports), 3) for p in sorted(phases)},
        add_predictions([one.predicted_kl for one in reports]),
    )


def _worst(statuses: Sequence[Status]) -> Status:
    """Return DRIFTED if it is among them, else the first that is not ok."""
    if Status.DRIFTED in statuses:
        return Status.DRIFTED
    return next((one for one in statuses if not one.ok), Status.DONE)


def _with_drift(key: jax.Array, parts: list[Coreset], union: Coreset, sampler: Sampler) -> Coreset:
    """Return the union with what is known of the distance of its parts, and warn of it."""
    report = union.report
    progress.begin("drawing from the parts", len(parts) + 1, "posteriors")
    places: list[Gaussian] = []
    try:
        for number, part in enumerate([*parts, union]):
            like = places[0].mean if places else None
            place = locate(jax.random.fold_in(key, number), part.density, sampler, like)
            places.append(place)
            progress.advance(1, "posteriors")
    except ModelError as error:
        warnings.warn(
            "How far the posteriors of the parts lie from that of all parts is not known, so no KL "
            "is predicted. Give a sampler that fits the model (sampler=), or run decoct.check on "
            f"all rows. The sampler says: {error}",
            stacklevel=3,
        )
        return replace(union, report=replace(report, predicted_kl=None))
    distances = np.array([distance(place, places[-1].mean) for place in places[:-1]])
    # an error of KL nats can itself move a posterior by √(2 KL) sd
    limit = DRIFTED + np.sqrt(2.0 * (report.predicted_kl or 0.0))
    drifted = report.status is Status.DRIFTED or (distances > limit).any()
    if drifted:
        number = int(distances.argmax())
        warnings.warn(
            f"The posterior of all parts lies {distances[number]:.1f} sd from that of coreset "
            f"{number}, in sd of the latter, or a coreset had drifted before: a coreset is right "
            "near its own posterior only, so no KL is predicted. Build the parts from rows "
            "shuffled together, or run decoct.check on all rows to see how close the coreset is.",
            stacklevel=3,
        )
    known = not drifted and (distances <= DRIFTED).all()
    report = replace(
        report,
        status=Status.DRIFTED if drifted else report.status,
        rounds=[{**report.rounds[-1], "drift": float(distances.max())}],
        predicted_kl=report.predicted_kl if known else None,
    )
    return replace(union, report=report)


def _compressed(union: Coreset, found: Compressed, size: int, seed: int) -> Coreset:
    kept, report = found.selection, union.report
    predicted = add_predictions([report.predicted_kl, found.predicted_kl])
    report = replace(
        report,
        seed=seed,
        status=_worst([found.status.judged(predicted), report.status]),
        size_asked=size,
        rounds=[*found.rounds, *report.rounds],
        evaluations=report.evaluations + found.evaluations,
        predicted_kl=predicted,
    )
    rows = {name: column[found.positions] for name, column in union.rows.items()}
    indices, weights = kept.indices, kept.weights
    return Coreset(indices, weights, rows, union.n_rows, union.model, report, kept.site)
