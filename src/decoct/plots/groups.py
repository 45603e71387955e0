"""Which groups of a multilevel model have rows in the coreset."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd

from decoct.certificates.table import table_of
from decoct.coreset import Coreset
from decoct.data.base import Rows
from decoct.errors import RequestError
from decoct.plots.style import COLOURS, GREY, figure, style_axes

NAMED = 5
"""Groups whose names are written: those with the most weight."""


def kept_by_group(coreset: Coreset, rows: Rows | Any, group: str, *, title: str = "") -> Any:
    """Draw how many rows each group has in the table, and what weight the coreset gives it.

    Groups of few rows are those whose likelihood is least like a quadratic, and need rows of their
    own; the site stands for the rows of all others.

    Parameters
    ----------
    coreset
        The coreset.
    rows
        The table it was built from; one column of it is read.
    group
        The column with the groups: numbers or text.
    title
        Title of the picture.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    RequestError
        matplotlib is missing, or ``group`` is not a column with one group per row.
    CoresetFileError
        The table has another number of rows than the one the coreset was built from.

    Examples
    --------
    >>> import decoct, decoct.plots, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2)), "g": np.arange(500) % 7}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=3)
    >>> decoct.plots.kept_by_group(coreset, rows, "g").axes[0].get_xlabel()
    'rows of the group in the table'
    """
    table = table_of(coreset, rows, progress=None)
    with closing(table.chunks(columns=[group])) as chunks:
        counts = [_counted(chunk.columns[group], group) for chunk in chunks]
    found: Any = pd.concat(counts).groupby(level=0).sum()
    names, sizes = found.index, found.to_numpy()
    of_rows = table.take(coreset.indices, [group])[group]
    weights: Any = pd.Series(coreset.weights).groupby(of_rows).sum()
    weights = weights.reindex(names, fill_value=0.0).to_numpy()
    has_rows = weights > 0.0
    picture = figure(10.0, 5.0)
    axes = picture.add_subplot()
    axes.plot(
        sizes[~has_rows], np.zeros((~has_rows).sum()), "|", color=GREY, markersize=14,
        label=f"{(~has_rows).sum():,} groups without a row: the site stands for theirs",
    )  # fmt: skip
    axes.plot(
        sizes[has_rows], weights[has_rows], "o", color=COLOURS[1],
        label=f"{has_rows.sum():,} groups with rows in the coreset",
    )  # fmt: skip
    for at in np.argsort(-weights, kind="stable")[: min(NAMED, has_rows.sum())]:
        axes.annotate(str(names[at]), (sizes[at], weights[at]), (5, 3), textcoords="offset points")
    axes.set_xscale("log")
    title = title or f"{coreset.size:,} rows kept, by {group}"
    style_axes(axes, title, "rows of the group in the table", "rows stood for by kept ones")
    axes.legend(frameon=False, fontsize=11)
    return picture


def _counted(values: np.ndarray, name: str) -> pd.Series:
    if values.ndim != 1:
        raise RequestError(f"Column '{name}' is not one group per row; choose another.")
    return pd.Series(values).value_counts()
