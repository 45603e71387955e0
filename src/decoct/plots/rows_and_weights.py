"""The kept rows among all rows, and how the weight is spread over rows and over groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd

from decoct.certificates.certificate import table_of
from decoct.coreset import Coreset
from decoct.data.base import Rows
from decoct.errors import RequestError
from decoct.plots.style import COLOURS, GREY, figure, style_axes
from decoct.runtime.checks import checked_whole

FEW_VALUES = 6
"""A response with at most this many values gets a colour each; others a colour bar."""

LARGEST_DISC = 420.0
"""Area of the heaviest row's disc, in square points."""

NAMED = 5
"""Groups whose names are written: those with the most weight."""


def kept_rows(
    coreset: Coreset,
    rows: Rows | Any,
    *,
    x: str | None = None,
    y: str | None = None,
    response: str | None = None,
    sample: int = 20_000,
    seed: int = 0,
    title: str | None = None,
    label: Callable[[str], str] = str,
) -> Any:
    """Draw the kept rows, the area of a disc proportional to the weight, among all rows.

    Parameters
    ----------
    coreset
        The coreset.
    rows
        The table it was built from; a uniform sample of it is taken, never all of it.
    x, y
        Numeric columns of the table for the two axes. By default the first two principal directions
        of the model's design, found from the sample; where it has fewer, the response and the
        number of the row stand in.
    response
        The column that gives the colour; by default the response of a regression, if there is one.
    sample
        Most rows in the background.
    seed
        Seed of the background sample.
    title
        Title of the picture.
    label
        Turns the name of a coefficient into the one written in the picture.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    RequestError
        No row is kept, or matplotlib is missing, or the columns cannot be drawn.
    CoresetFileError
        The table has another number of rows than the one the coreset was built from.

    Examples
    --------
    >>> import decoct, decoct.plots, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(1000, 3)), "y": np.arange(1000) % 2}
    >>> coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=20)
    >>> decoct.plots.kept_rows(coreset, rows).axes[0].get_xlabel()[:25]
    '1st principal direction ('
    """
    _require_rows(coreset)
    table = table_of(coreset, rows, progress=None)
    if (x is None) != (y is None):
        raise RequestError("Give both x= and y=, or neither for the principal directions.")
    checked_whole("sample", sample, 1)
    picture = figure(10.0, 7.0)
    axes = picture.add_subplot()
    n = min(sample, table.n_rows)
    behind = np.arange(n)
    if n < table.n_rows:
        behind = np.sort(np.random.default_rng(seed).choice(table.n_rows, n, replace=False))

    def read(name: str) -> np.ndarray:
        """Return a column at the background's rows, then at the kept rows."""
        parts = [table.take(places, [name])[name] for places in (behind, coreset.indices)]
        return np.concatenate(parts)

    names = (getattr(coreset.model, "response", None), "y")
    response = response or next((name for name in names if name in table.columns), None)
    values = None if response is None else read(response)
    if x is None or y is None:
        needed = coreset.model.columns
        raw = table.take(behind, None if needed is None else list(needed))
        found = _principal_directions(coreset, raw, behind, label)
        # where the design has less than two directions, others stand in
        if response is not None and values is not None and _is_numeric(values):
            found.append((response, values))
        found.append(("number of the row", np.concatenate([behind, coreset.indices])))
        found.append(("", np.zeros(n + coreset.size)))
    else:
        found = [(name, read(name)) for name in (x, y)]
        for name, column in found:
            if not _is_numeric(column):
                raise RequestError(
                    f"Column '{name}' is not one number per row and cannot be an axis; "
                    "choose another."
                )
    (x, across), (y, up) = found[:2]
    shades, options = _colour(axes, response, values, len(across))
    axes.scatter(
        across[:n], up[:n], c=shades[:n], s=4.0, alpha=0.25, linewidths=0, zorder=1, **options
    )
    order = np.argsort(-coreset.weights, kind="stable")  # small discs on top of large ones
    discs = axes.scatter(
        across[n:][order], up[n:][order], c=shades[n:][order], alpha=0.85, linewidths=0.9,
        s=LARGEST_DISC * coreset.weights[order] / coreset.weights.max(),
        edgecolors="black", zorder=2, **options,
    )  # fmt: skip
    if options:
        picture.colorbar(discs, ax=axes, extend="both").set_label(response, fontsize=12)
    shown = f"{n:,} of {table.n_rows:,}" if n < table.n_rows else "all"
    title = title or f"{coreset.size:,} rows kept, over {shown} rows; area of a disc = weight"
    style_axes(axes, title, x, y)
    largest = float(coreset.weights.max())
    for share in (0.1, 0.4, 1.0):  # three round weights say what the areas mean
        weight = float(f"{share * largest:.1g}")
        axes.scatter(
            [], [], s=LARGEST_DISC * weight / largest, color="white", edgecolors="black",
            linewidths=0.9, label=f"weight {weight:,.6g}",
        )  # fmt: skip
    axes.legend(
        fontsize=11, frameon=True, framealpha=0.9, edgecolor="none", labelspacing=0.9,
        loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0,
    )  # fmt: skip
    return picture


def _require_rows(coreset: Coreset) -> None:
    if not coreset.size:
        raise RequestError(
            "The coreset has no rows to draw: its site stands for all rows of the table."
        )


def _is_numeric(values: np.ndarray) -> bool:
    return values.ndim == 1 and values.dtype.kind in "fiub"


def _principal_directions(
    coreset: Coreset, raw: dict[str, np.ndarray], behind: np.ndarray, label: Callable[[str], str]
) -> list[tuple[str, np.ndarray]]:
    """Project the encoded design on at most two principal directions of the background."""
    model, n = coreset.model, len(behind)
    encoded, kept = model.encode(raw, behind), model.encode(coreset.rows, coreset.indices)
    columns = [np.concatenate([encoded[name], kept[name]]) for name in encoded if name != "y"]
    if not columns:
        raise RequestError("The model has nothing but a response to draw; give x= and y=.")
    both = np.concatenate([np.reshape(one, (len(one), -1)) for one in columns], axis=1, dtype=float)
    both -= both[:n].mean(axis=0)
    _, spread, directions = np.linalg.svd(both[:n], full_matrices=False)
    share = np.square(spread) / max(float(np.square(spread).sum()), np.finfo(float).tiny)
    named = [found for _, found in model.coords(raw).values() if len(found) == both.shape[1]]
    labels = [label(name) for name in named[0]] if named else []
    found = []
    for i, direction in enumerate(directions[:2]):
        if share[i] >= 1e-12:
            # the sign of a direction is arbitrary: its heaviest column counts upwards
            direction = direction * np.sign(direction[np.abs(direction).argmax()])
            found.append((_describe_direction(i, share[i], direction, labels), both @ direction))
    return found


def _describe_direction(i: int, share: float, direction: np.ndarray, labels: Sequence[str]) -> str:
    text = f"{('1st', '2nd')[i]} principal direction ({share:.0%} of the variance)"
    size = np.abs(direction)
    heavy = [j for j in np.argsort(-size)[:3] if size[j] > 0.05 * size.max()] if labels else []
    signed = [f"{'+' if direction[j] > 0 else '−'} {labels[j]}" for j in heavy]
    return f"{text}\nmostly {', '.join(signed)}" if signed else text


def _colour(
    axes: Any, name: str | None, values: np.ndarray | None, n: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a colour or a number of every point, and the scale of the numbers."""
    if values is None:
        return np.full(n, COLOURS[0]), {}
    if values.ndim != 1:
        raise RequestError(
            f"Column '{name}' is not one value per row and cannot give the colour; choose another."
        )
    levels = sorted(set(values.tolist()), key=str if values.dtype.kind == "O" else None)
    if len(levels) <= FEW_VALUES:
        colours = dict(zip(levels, COLOURS, strict=False))
        for value, colour in colours.items():
            axes.scatter([], [], s=60, color=colour, label=f"{name} = {value}")
        return np.array([colours[value] for value in values.tolist()]), {}
    if not _is_numeric(values):
        raise RequestError(
            f"Column '{name}' has {len(levels)} values that are not numbers; colour by another."
        )
    low, high = np.nanquantile(values.astype(float), [0.01, 0.99])
    return values, {"vmin": float(low), "vmax": float(high), "cmap": "viridis"}


def kept_weights(coreset: Coreset, *, title: str = "Weights of the kept rows") -> Any:
    """Draw the weights, largest first, and the share of Σw that the heaviest rows carry.

    A weight says how many rows of the table one kept row stands for.

    Parameters
    ----------
    coreset
        The coreset.
    title
        Title of the picture.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    RequestError
        No row is kept, or matplotlib is missing.

    Examples
    --------
    >>> import decoct, decoct.plots, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> method = decoct.constructions.Uniform()
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=10, method=method)
    >>> decoct.plots.kept_weights(coreset).axes[0].get_ylabel()
    'weight, rows stood for'
    """
    _require_rows(coreset)
    weights = np.sort(coreset.weights)[::-1]
    rank = np.arange(1, len(weights) + 1)
    picture = figure(10.0, 4.2)
    left, right = picture.subplots(1, 2)
    left.vlines(rank, weights.min() / 2.0, weights, color=COLOURS[0], linewidth=1.2)
    left.plot(rank, weights, "o", markersize=3.5, color=COLOURS[0])
    left.set_yscale("log")
    style_axes(left, title, "rank of the row", "weight, rows stood for")
    right.plot(rank, 100.0 * np.cumsum(weights) / weights.sum(), color=COLOURS[1], linewidth=2.0)
    right.axline((0.0, 0.0), (len(weights), 100.0), color=GREY, linestyle=":", linewidth=1.0)
    right.set_ylim(0.0, 102.0)
    style_axes(right, "Share of the weight", "heaviest rows", "share of all weight, %")
    return picture


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
        counts = [_count(chunk.columns[group], group) for chunk in chunks]
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


def _count(values: np.ndarray, name: str) -> pd.Series:
    if values.ndim != 1:
        raise RequestError(f"Column '{name}' is not one group per row; choose another.")
    return pd.Series(values).value_counts()
