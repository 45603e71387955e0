"""Coresets built apart, merged (Campbell & Broderick 2019, §4.3), and made smaller again.

If the table is cut in C parts and a Hilbert coreset is built on each, Σ_c L_c(w_c) is a coreset of
the whole: by the triangle inequality its error is at most the sum of theirs, which gives the
bounds σ η̄/√M for Frank–Wolfe and (σ η̄/√M)(1 + √(2 log C/δ)) for importance sampling, with σ and η̄
of the whole table (Corollaries 4.5, 4.6; `decoct.theory.bounds`). Parts may live on different
machines or arrive one after the other; only the coresets have to meet.

The union may be compressed once more (`decoct.streams.recompress`), which adds one error to
the sum. With KL_c ≈ ½ρ_c² the predicted KL of part c, ρ_c = ‖L_c − L_c(w_c)‖ in the L2 norm,

    KL ≤ ½ (Σ_c ρ_c + ρ)²,  and ½ (Σ_c ρ_c² + ρ²) where the parts' errors are independent.

The corollaries take every norm at the same draws. A part's is measured at draws of its own
posterior, and carried to the union's (`union_error`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Selection
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.errors import DecoctError, RequestError
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.fingerprint import find_difference, fingerprint
from decoct.report import Report
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import checked_seed
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler
from decoct.status import Status
from decoct.streams.error_sum import NOTHING, ErrorSum
from decoct.streams.recompress import Recompressed, recompress
from decoct.streams.union_error import kept_of, located

DRIFT_KEY = 2**31
"""Folded into the key of the draws that say where posteriors lie; below it come the rounds."""


def merge(
    coresets: Sequence[Coreset],
    size: int | None = None,
    *,
    sampler: Sampler | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Coreset:
    """Return the coreset of several tables laid end to end, from one coreset of each.

    Parameters
    ----------
    coresets
        In the order of the tables. All of one model, hyper-parameters included. A model of your
        own functions is compared by their values (`decoct.models.fingerprint`).
    size
        Most rows to keep. New weights are found if the parts have more rows in all, at draws of
        the posterior of all parts together. None keeps every row and touches no weight.
    sampler
        A sampler of `decoct.samplers` that supplies those draws; default `Automatic`. It also
        says where the posteriors of the parts lie, if the Laplace approximation of one fails.
    seed
        Seed of those draws.
    progress
        Show a progress bar; None shows it on a terminal.

    Returns
    -------
    Coreset
        Row numbers count on from table to table. Costs in the report are the sums. Its last round
        has what can be said of the error where every part has a predicted KL: ``kl_bound``, if all
        errors point the same way (the triangle inequality of Corollaries 4.5 and 4.6), and
        ``kl_if_independent``, both in nats and with an assumption about remainders (Notes). The
        predicted KL is ``kl_if_independent`` after a compression, and None without.

    Warns
    -----
    UserWarning
        The posterior of a part lies too far from that of all parts together, and not because of the
        parts' own errors: the status is `Status.DRIFTED`, and no KL is predicted or bounded. Or it
        is not known how far, because one of them has no Laplace approximation and ``sampler``
        cannot draw from it; then no KL is predicted or bounded either, and the status is the
        parts'.

    Raises
    ------
    RequestError
        Nothing to merge, the models or columns differ, or ``size`` is no number of rows.
    RowsError
        The parts' responses have values that exclude each other, such as labels −1, 0 and 1.

    Notes
    -----
    A part's KL was predicted at the draws of its *own* posterior. ``drift`` in the last round says
    how far the union's posterior lies from the part's, in sd of the part's, in the coordinate or
    principal axis and the part where it is most. It is measured at the modes; where a Laplace
    approximation fails (k-hat above 0.7), at the means of draws of ``sampler``.
    ``drift_sampler`` says which.

    What a part leaves is taken for the remainder of a Taylor series, of the first ``order`` that
    rows as many as its own do not match, without preferred direction, and counts as it has grown
    between the two posteriors (`decoct.streams.remainder`): a part's KL by a factor of
    ``growth`` in the part where it is most, in ``kl_bound`` by that of the order, up to the next,
    that grows most. A remainder that points along the way from one posterior to the other grows by
    more, the more so the more parameters there are. `decoct.check` measures, and assumes nothing.

    Parts cut at random from one table are at 1 to 3 sd, however many. Above `DRIFTED` = 5 sd no KL
    is predicted or bounded, also where the log-likelihood is quadratic and a good coreset right
    everywhere. If the parts' own errors cannot explain the rest (an error of ρ can move a
    posterior by ρ sd), the status is `Status.DRIFTED`.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> parts = [decoct.build(model, {"x": rng.normal(size=(500, 2))}, size=8) for _ in range(3)]
    >>> whole = decoct.merge(parts)
    >>> whole.n_rows, whole.size == sum(part.size for part in parts)
    (1500, True)
    >>> decoct.merge(parts, size=10).size <= 10
    True
    """
    parts, seed = _checked(coresets), checked_seed(seed)
    sampler = Automatic() if sampler is None else sampler
    require_sampler(sampler)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | np.integer)):
        raise RequestError(f"size must be a whole number of rows, not {size!r}.")
    if size is not None and size < 1:
        raise RequestError(f"size must be at least 1, not {size}.")
    key, union = jax.random.key(seed), _union(parts)
    union.model.check_values(union.model.distinct(ArrayRows(union.rows)))
    with ProgressBar(progress):
        union = located(jax.random.fold_in(key, DRIFT_KEY), parts, union, sampler)
        if size is None or union.size <= size:
            return union
        encoded = union.model.encode(union.rows, union.indices)
        given = Selection(union.indices, union.weights, encoded)
        found = recompress(key, union.model, given, int(size), sampler)
    return _compressed(union, found, int(size), seed)


def _checked(coresets: Sequence[Coreset]) -> list[Coreset]:
    listed: list[Any] = list(coresets) if isinstance(coresets, list | tuple) else [coresets]
    parts = [part for part in listed if isinstance(part, Coreset)]
    if len(parts) < len(listed) or isinstance(coresets, Coreset):
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


def _union(parts: Sequence[Coreset]) -> Coreset:
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    indices = [part.indices + start for part, start in zip(parts, starts[:-1], strict=True)]
    rows = {
        name: np.concatenate([np.asarray(part.rows[name]) for part in parts])
        for name in parts[0].rows
    }
    return Coreset(
        np.concatenate(indices),
        np.concatenate([part.weights for part in parts]),
        rows,
        int(starts[-1]),
        parts[0].model,
        _report([part.report for part in parts]),
    )


def _worst(statuses: Sequence[Status]) -> Status:
    """Return the first that is not ok; before all others, one that says that the KL is unknown."""
    if Status.DRIFTED in statuses:
        return Status.DRIFTED
    return next((one for one in statuses if not one.ok), Status.DONE)


def _compressed(union: Coreset, found: Recompressed, size: int, seed: int) -> Coreset:
    kept, report = found.chosen.selection, union.report
    before = ErrorSum.of_report(report)
    error = None if before is None else before.with_step(found.chosen.predicted_kl)
    last = {**found.rounds[-1], **kept_of(report, error)}
    return Coreset(
        kept.indices,
        kept.weights,
        {name: column[found.positions] for name, column in union.rows.items()},
        union.n_rows,
        union.model,
        replace(
            report,
            seed=seed,
            status=_worst([found.status, report.status]),
            size_asked=size,
            rounds=[*report.rounds, last],
            evaluations=report.evaluations + found.evaluations,
            predicted_kl=None if error is None else error.kl_if_independent,
        ),
    )


def _require_alike(first: Coreset, other: Coreset, number: int) -> None:
    if first.model is not other.model:
        _require_same(_described(first), _described(other), number)
    if _shapes(first) != _shapes(other):
        raise RequestError(
            f"Coreset {number} has the columns {_shapes(other)} (name and shape of a row), "
            f"coreset 0 {_shapes(first)}; merge coresets of tables with the same columns."
        )
    if first.model is not other.model and _is_of_functions(first):
        known = fingerprint(first.model, first.model.encode(first.rows, first.indices))
        try:
            differs = find_difference(
                known, other.model, other.model.encode(first.rows, first.indices)
            )
        except (DecoctError, KeyError, TypeError, ValueError, IndexError) as error:
            differs = f"it cannot be evaluated on the rows of coreset 0 ({error})"
        if differs is not None:
            raise RequestError(
                f"Coreset {number} is of another model than coreset 0: {differs}; potentials of "
                "different models do not add up."
            )


def _require_same(first: str, other: str, number: int) -> None:
    if first != other:
        raise RequestError(
            f"Coreset {number} is of another model than coreset 0: {other} instead of {first}; "
            "potentials of different models do not add up."
        )


def _shapes(coreset: Coreset) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(values)[1:] for name, values in coreset.rows.items()}


def _described(coreset: Coreset) -> str:
    return f"{type(coreset.model).__name__} {coreset.model.to_dict()}"


def _is_of_functions(coreset: Coreset) -> bool:
    """Whether the model's description does not tell it apart from others; its functions do."""
    ours = type(coreset.model).__module__.partition(".")[0] == "decoct"
    return not ours or coreset.model.to_dict()["kind"] in OF_FUNCTIONS


def _report(reports: list[Report]) -> Report:
    sizes = [one.size_asked for one in reports]
    seconds: dict[str, float] = {}
    for one in reports:
        for phase, value in one.seconds.items():
            seconds[phase] = round(seconds.get(phase, 0.0) + value, 3)
    errors = [ErrorSum.of_report(one) for one in reports]
    known = [one for one in errors if one is not None]
    worst = _worst([one.status for one in reports])
    sums: dict[str, Any] = {}
    if worst is Status.DRIFTED:
        sums = dict(NOTHING)
    elif len(known) == len(errors):
        sums = ErrorSum.of_parts(known).to_dict()
    return Report(
        {"name": "merge", "parts": [one.method for one in reports]},
        reports[0].seed,
        worst,
        None if None in sizes else sum(size for size in sizes if size is not None),
        None,
        [{"parts": len(reports), **sums}] if sums else [],
        sum(one.passes for one in reports),
        sum(one.evaluations for one in reports),
        seconds,
    )
