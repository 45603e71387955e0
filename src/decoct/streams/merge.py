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

from decoct.constructions.base import Construction
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.errors import ModelError, RequestError
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.fingerprint import find_difference, fingerprint
from decoct.report import Report
from decoct.runtime.checks import is_whole
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import checked_seed
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler
from decoct.status import Status
from decoct.streams.compress import compress, sum_of_known, sum_of_sites, worst
from decoct.streams.drift import with_drift


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
        How rows are compressed; default `IteratedHilbert`.
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
        A part lies more than 5 sd away, and not because of the parts' own errors: the
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
    _check(coresets)
    sampler = Automatic() if sampler is None else sampler
    require_sampler(sampler)
    if size is not None and not is_whole(size, 0):
        raise RequestError(f"size must be a whole number of rows, at least 0, not {size!r}.")
    place_key, key = jax.random.split(jax.random.key(checked_seed(seed)))
    union = unite(coresets)
    if union.size:
        union.model.check_values(union.model.distinct(ArrayRows(union.rows)))
    with ProgressBar(progress):
        try:
            if union.report.predicted_kl is not None:  # else nothing is claimed
                union = with_drift(place_key, coresets, union, sampler)
        except ModelError as error:
            warnings.warn(
                "How far the posteriors of the parts lie from that of all parts is not known, so "
                "no KL is predicted. Give a sampler that fits the model (sampler=), or run "
                f"decoct.check on all rows. The sampler says: {error}",
                stacklevel=2,
            )
            rounds = [{"parts": len(coresets)}]
            union = replace(union, report=replace(union.report, predicted_kl=None, rounds=rounds))
        if union.report.status is Status.DRIFTED:
            warnings.warn(
                f"The posterior of all parts lies {union.report.rounds[-1]['drift']:.1f} sd from "
                "that of a part, in sd of the part, or a part had drifted before. A coreset is "
                "right near its own posterior only, so no KL is predicted. Build the parts from "
                "rows shuffled together, or run decoct.check on all rows.",
                stacklevel=2,
            )
        if size is None:
            return union
        union = replace(union, report=replace(union.report, seed=seed))
        return compress(key, union, int(size), sampler, method or IteratedHilbert())


def unite(parts: Sequence[Coreset]) -> Coreset:
    """Return the rows of all parts with their weights, and the sum of their sites."""
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    reports = [part.report for part in parts]
    known = [one.rounds[-1]["drift"] for one in reports if one.rounds and "drift" in one.rounds[-1]]
    seconds = sum(one for report in reports for one in report.seconds.values())
    report = Report(
        method={"name": "merge", "parts": [one.method for one in reports]},
        seed=reports[0].seed,
        status=worst([one.status for one in reports]),
        size_asked=sum_of_known([one.size_asked for one in reports]),
        kl_asked=None,
        rounds=[{"parts": len(parts), **({"drift": max(known)} if known else {})}],
        passes=sum(one.passes for one in reports),
        evaluations=sum(one.evaluations for one in reports),
        seconds={"parts": round(seconds, 3)},
        predicted_kl=sum_of_known([one.predicted_kl for one in reports]),
    )
    return Coreset(
        np.concatenate([p.indices + start for p, start in zip(parts, starts[:-1], strict=True)]),
        np.concatenate([part.weights for part in parts]),
        {name: np.concatenate([part.rows[name] for part in parts]) for name in parts[0].rows},
        int(starts[-1]),
        parts[0].model,
        report,
        sum_of_sites([part.site for part in parts]),
    )


def _check(parts: Any) -> None:
    """Refuse what cannot be merged."""
    listed = isinstance(parts, list | tuple) and all(isinstance(part, Coreset) for part in parts)
    if not (listed and parts):
        raise RequestError("There is nothing to merge; give a list of coresets, one per table.")
    if not isinstance(parts[0].model, AbstractModel):
        raise RequestError(
            f"A {type(parts[0].model).__name__} is fitted to the rows of its coreset, and has no "
            "posterior for those of several; put the rows and the weights of the coresets "
            "together, and fit it with fit(X, sample_weight=w)."
        )
    shapes = [{name: np.shape(v)[1:] for name, v in part.rows.items()} for part in parts]
    for number, part in enumerate(parts):
        differs = _difference(parts[0], part, shapes[number] == shapes[0])
        if differs is not None:
            raise RequestError(
                f"Coreset {number} is of another model than coreset 0: {differs}; potentials of "
                "different models do not add up."
            )
        if shapes[number] != shapes[0]:
            raise RequestError(
                f"Coreset {number} has the columns {shapes[number]} (name and shape of a row), "
                f"coreset 0 {shapes[0]}; merge coresets of tables with the same columns."
            )


def _difference(first: Coreset, other: Coreset, same_columns: bool) -> str | None:
    """Return in what two models differ: their descriptions, or what their functions compute."""
    if first.model is other.model:
        return None
    one, two = (f"{type(c.model).__name__} {c.model.to_dict()}" for c in (first, other))
    if one != two:
        return f"{two} instead of {one}"
    some = first if first.size else other
    if not (is_of_functions(first.model) and same_columns and some.size):
        return None
    rows, others = (c.model.encode(some.rows, some.indices) for c in (first, other))
    return find_difference(fingerprint(first.model, rows), other.model, others)


def is_of_functions(model: AbstractModel) -> bool:
    """Whether a model's description may leave out what it computes."""
    ours = type(model).__module__.partition(".")[0] == "decoct"
    return not ours or model.to_dict()["kind"] in OF_FUNCTIONS
