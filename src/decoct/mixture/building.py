"""Coresets for mixtures: a construction chooses rows, and the mixture is fitted to them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from decoct.building import costs, driver
from decoct.constructions.base import Construction
from decoct.constructions.sampling.lightweight import LightweightCoreset
from decoct.constructions.sampling.uniform import Uniform
from decoct.coreset import Coreset
from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.formats.coreset_file import StoredCoreset
from decoct.mixture.coreset_fit import MixtureCoreset, NumericTable
from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture
from decoct.mixture.estimator_input import check_parameters, count_moment_passes
from decoct.report import Report


def build(
    estimator: DPGaussianMixture,
    rows: Rows | Any,
    *,
    size: int,
    method: Construction | None = None,
    seed: int = 0,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> MixtureCoreset:
    """Compress the rows for a mixture, and fit it to the coreset.

    Parameters
    ----------
    estimator
        An unfitted `decoct.mixture.DPGaussianMixture`; it stays unfitted.
    rows
        Anything `decoct.rows` accepts; all columns are numbers.
    size
        Most rows to keep, 1 ≤ size ≤ N.
    method
        `LightweightCoreset` (the default; Borsos, Bachem & Krause 2017) or `Uniform`.
    seed, progress, checkpoint
        As for `decoct.build`.

    Returns
    -------
    MixtureCoreset
        Its ``model`` is a copy of the estimator, fitted to the kept rows.

    Raises
    ------
    DecoctError
        The rows, the estimator or an option cannot be used; the message says which.

    Examples
    --------
    >>> import decoct.mixture, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(2000, 2))
    >>> estimator = decoct.mixture.DPGaussianMixture(n_components=3)
    >>> coreset = decoct.mixture.build(estimator, {"x": x}, size=200)
    >>> coreset.model.means_.shape
    (3, 2)
    """
    table, method = _check_request(estimator, method)
    source = as_rows(rows)
    coreset = driver.build(
        table, source, size=size, method=method, seed=seed,
        progress=progress, checkpoint=checkpoint,
    )  # fmt: skip
    return estimator.fit_to_coreset(coreset, encoded(source, table))


def path(
    estimator: DPGaussianMixture,
    rows: Rows | Any,
    sizes: Sequence[int],
    *,
    method: Construction | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> list[MixtureCoreset]:
    """Return one coreset per size, each with a mixture fitted to it; see `decoct.path`.

    Parameters
    ----------
    estimator, rows, method, seed, progress
        As for `build`.
    sizes
        Sizes wanted.

    Returns
    -------
    list of MixtureCoreset
        In ascending order of size.

    Examples
    --------
    >>> import decoct.mixture, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> estimator = decoct.mixture.DPGaussianMixture(n_components=2, max_iter=1000)
    >>> [one.size <= 50 for one in decoct.mixture.path(estimator, {"x": x}, [20, 50])]
    [True, True]
    """
    table, method = _check_request(estimator, method)
    source = as_rows(rows)
    coresets = driver.path(table, source, sizes, method=method, seed=seed, progress=progress)
    return [estimator.fit_to_coreset(one, encoded(source, table)) for one in coresets]


def estimate(
    estimator: DPGaussianMixture,
    rows: Rows | Any,
    *,
    size: int,
    method: Construction | None = None,
) -> costs.Estimate:
    """Say what `build` with these arguments will cost, the fit left out; see `decoct.estimate`.

    Default priors take the moments of the whole table, which costs a pass more.

    Parameters
    ----------
    estimator, rows, size, method
        As for `build`.

    Returns
    -------
    Estimate
        Passes, evaluations, CPU seconds and memory.

    Examples
    --------
    >>> import decoct.mixture, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> estimator = decoct.mixture.DPGaussianMixture(n_components=2)
    >>> decoct.mixture.estimate(estimator, {"x": x}, size=50).passes
    (3, 3)
    """
    table, method = _check_request(estimator, method)
    cost = costs.estimate(table, rows, size=size, method=method)
    moments = count_moment_passes(estimator)
    return dataclasses.replace(cost, passes=(cost.passes[0] + moments, cost.passes[1] + moments))


def coreset_from_file(stored: StoredCoreset) -> MixtureCoreset:
    """Return the coreset of a file, its mixture fitted as it was."""
    described = stored.description
    fitted = DPGaussianMixture.from_state(described["model"], described["fitted"])
    parts = (stored.indices, stored.weights, stored.rows, int(described["n_rows"]))
    report = Report.from_dict(described["report"])
    return fitted._become_model_of(Coreset(*parts, fitted, report))


def _check_request(
    estimator: Any, method: Construction | None
) -> tuple[NumericTable, Construction]:
    """Return what turns rows into numbers, and what chooses among them.

    By default that is the construction of Borsos, Bachem & Krause (2017).
    """
    if not isinstance(estimator, DPGaussianMixture):
        raise RequestError(
            f"estimator is a decoct.mixture.DPGaussianMixture, not {estimator!r}; its parameters "
            "have scikit-learn's names."
        )
    check_parameters(estimator)
    method = LightweightCoreset() if method is None else method
    if not isinstance(method, (LightweightCoreset, Uniform)):
        raise RequestError(
            f"{type(method).__name__} weighs rows by their log-likelihood at draws of parameters, "
            f"which {type(estimator).__name__} does not have; use LightweightCoreset() or "
            "Uniform()."
        )
    if estimator.coreset_size is not None:
        raise RequestError(
            f"The size is size=, but coreset_size is {estimator.coreset_size}; leave it None."
        )
    if isinstance(method, LightweightCoreset) and method.components is None:
        method = dataclasses.replace(method, components=int(estimator.n_components))
    return NumericTable(getattr(method, "columns", None)), method
