"""The kept rows among all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from decoct.coreset import Coreset
from decoct.data.base import Rows, checked_columns
from decoct.data.tables import rows as as_rows
from decoct.errors import CoresetFileError, RequestError
from decoct.plots.style import COLOURS, dress, figure

FEW = 6
"""A response with at most this many values gets a colour each; others a colour bar."""

LARGEST = 420.0
"""Area of the heaviest row's disc, in square points."""


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
        matplotlib is missing, or the columns cannot be drawn.
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
    table = as_rows(rows)
    if table.n_rows != coreset.n_rows:
        raise CoresetFileError(
            f"The coreset was built from {coreset.n_rows} rows and this table has {table.n_rows}; "
            "draw it over the table it came from."
        )
    if (x is None) != (y is None):
        raise RequestError("Give both x= and y=, or neither for the principal directions.")
    if sample < 1:
        raise RequestError(f"sample is {sample}; the background needs at least 1 row.")
    picture = figure(10.0, 7.0)
    behind = _uniform(table.n_rows, sample, seed)
    colour_by = response or _response(coreset, table)
    if x is None or y is None:
        view = _principal(coreset, table, behind, label, colour_by)
    else:
        view = _columns(coreset, table, behind, (x, y))
    axes = picture.add_subplot()
    if colour_by is None:
        _scatter(
            axes,
            view,
            coreset.weights,
            [COLOURS[0]] * len(behind),
            [COLOURS[0]] * coreset.size,
            None,
        )
    else:
        values = (
            _values(table.take(behind, [colour_by]), colour_by),
            _values(table.take(coreset.indices, [colour_by]), colour_by),
        )
        _coloured(picture, axes, view, coreset.weights, colour_by, *values)
    shown = f"{len(behind):,} of {table.n_rows:,}" if len(behind) < table.n_rows else "all"
    dress(
        axes,
        title or f"{coreset.size:,} rows kept, over {shown} rows; area of a disc = weight",
        *view.labels,
    )
    _legend(axes, coreset.weights)
    return picture


class _View(NamedTuple):
    """Coordinates of the background and of the kept rows, and the names of the axes."""

    behind: Float[np.ndarray, "n 2"]
    kept: Float[np.ndarray, "M 2"]
    labels: tuple[str, str]


class _Axis(NamedTuple):
    """One coordinate of the background and of the kept rows, and its name."""

    behind: Float[np.ndarray, " n"]
    kept: Float[np.ndarray, " M"]
    name: str


def _uniform(n_rows: int, sample: int, seed: int) -> np.ndarray:
    if n_rows <= sample:
        return np.arange(n_rows)
    rng = np.random.default_rng(seed)
    if n_rows < 4 * sample:
        return np.sort(rng.permutation(n_rows)[:sample])
    # of a huge table nothing of length N is ever made
    picks = np.unique(rng.integers(n_rows, size=2 * sample))
    return np.sort(rng.permutation(picks)[:sample])


def _columns(coreset: Coreset, table: Rows, behind: np.ndarray, names: tuple[str, str]) -> _View:
    checked_columns(names, table.columns)

    def points(indices: np.ndarray) -> np.ndarray:
        taken = table.take(indices, list(dict.fromkeys(names)))
        return np.stack([_numbers(taken[name], name) for name in names], axis=1)

    return _View(points(behind), points(coreset.indices), names)


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise RequestError(
            f"Column '{name}' is not one number per row and cannot be an axis; choose another."
        )
    return values.astype(np.float64)


def _principal(
    coreset: Coreset,
    table: Rows,
    behind: np.ndarray,
    label: Callable[[str], str],
    response: str | None,
) -> _View:
    """Project the encoded design on the first two principal directions of the sample."""
    model = coreset.model
    names = None if model.columns is None else list(model.columns)
    raw = table.take(behind, names)
    design = _design(model.encode(raw, behind))
    kept = _design(model.encode(coreset.rows, coreset.indices))
    centre = design.mean(axis=0)
    _, spread, directions = np.linalg.svd(design - centre, full_matrices=False)
    heaviest = np.abs(directions).argmax(axis=1)
    # the sign of a direction is arbitrary: its heaviest column counts upwards
    directions *= np.sign(directions[np.arange(len(directions)), heaviest])[:, None]
    share = np.square(spread) / max(float(np.square(spread).sum()), np.finfo(float).tiny)
    known = [found for _, found in model.coords(raw).values() if len(found) == design.shape[1]]
    labels = [label(name) for name in known[0]] if known else []
    found = [
        _Axis((design - centre) @ one, (kept - centre) @ one, _direction(i, share[i], one, labels))
        for i, one in enumerate(directions[:2])
        if share[i] >= 1e-12
    ]
    first, second = [*found, *_stand_ins(coreset, table, behind, response)][:2]
    return _View(
        np.stack([first.behind, second.behind], axis=1),
        np.stack([first.kept, second.kept], axis=1),
        (first.name, second.name),
    )


def _stand_ins(
    coreset: Coreset, table: Rows, behind: np.ndarray, response: str | None
) -> Iterator[_Axis]:
    """Yield what may be drawn of rows of which the design has less than two directions."""
    if response is not None:
        here, kept = (
            table.take(indices, [response])[response] for indices in (behind, coreset.indices)
        )
        if here.ndim == 1 and here.dtype.kind in "fiub":
            yield _Axis(_numbers(here, response), _numbers(kept, response), response)
    yield _Axis(behind.astype(np.float64), coreset.indices.astype(np.float64), "number of the row")
    yield _Axis(np.zeros(len(behind)), np.zeros(coreset.size), "")


def _design(encoded: dict[str, np.ndarray]) -> Float[np.ndarray, "n D"]:
    columns = [
        np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        for name, values in encoded.items()
        if name != "y"
    ]
    if not columns:
        raise RequestError("The model has nothing but a response to draw; give x= and y=.")
    return np.concatenate(columns, axis=1)


def _direction(i: int, share: float, direction: np.ndarray, labels: Sequence[str]) -> str:
    text = f"{('1st', '2nd')[i]} principal direction ({share:.0%} of the variance)"
    size = np.abs(direction)
    heavy = [j for j in np.argsort(-size)[:3] if size[j] > 0.05 * size.max()] if labels else []
    signed = [f"{'+' if direction[j] > 0 else '−'} {labels[j]}" for j in heavy]
    return f"{text}\nmostly {', '.join(signed)}" if signed else text


def _response(coreset: Coreset, table: Rows) -> str | None:
    for name in (getattr(coreset.model, "response", None), "y"):
        if name in table.columns:
            return name
    return None


def _values(columns: dict[str, np.ndarray], name: str) -> np.ndarray:
    values = columns[name]
    if values.ndim != 1:
        raise RequestError(
            f"Column '{name}' is not one value per row and cannot give the colour; choose another."
        )
    return values


def _coloured(
    picture: Any,
    axes: Any,
    view: _View,
    weights: np.ndarray,
    name: str,
    behind: np.ndarray,
    kept: np.ndarray,
) -> None:
    everything = np.concatenate([behind, kept])
    levels = sorted(set(everything.tolist()), key=str) if everything.dtype.kind == "O" else None
    levels = np.unique(everything).tolist() if levels is None else levels
    if len(levels) <= FEW:
        colours = dict(zip(levels, COLOURS, strict=False))
        _scatter(
            axes,
            view,
            weights,
            [colours[value] for value in behind.tolist()],
            [colours[value] for value in kept.tolist()],
            None,
        )
        for value, colour in colours.items():
            axes.scatter([], [], s=60, color=colour, label=f"{name} = {value}")
        return
    if everything.dtype.kind not in "fiub":
        raise RequestError(
            f"Column '{name}' has {len(levels)} values that are no numbers; colour by another."
        )
    low, high = np.nanquantile(everything.astype(np.float64), [0.01, 0.99])
    drawn = _scatter(axes, view, weights, behind, kept, (float(low), float(high)))
    bar = picture.colorbar(drawn, ax=axes, extend="both")
    bar.set_label(name, fontsize=12)


def _scatter(
    axes: Any,
    view: _View,
    weights: np.ndarray,
    behind: Any,
    kept: Any,
    limits: tuple[float, float] | None,
) -> Any:
    shades = {} if limits is None else {"vmin": limits[0], "vmax": limits[1], "cmap": "viridis"}
    axes.scatter(*view.behind.T, c=behind, s=4.0, alpha=0.25, linewidths=0, zorder=1, **shades)
    order = np.argsort(-weights, kind="stable")  # small discs on top of large ones
    shade = [kept[i] for i in order]
    return axes.scatter(
        *view.kept[order].T, c=shade, s=_areas(weights[order], weights), alpha=0.85, linewidths=0.9,
        edgecolors="black", zorder=2, **shades,
    )  # fmt: skip


def _areas(weights: Any, among: np.ndarray) -> np.ndarray:
    return LARGEST * np.asarray(weights) / among.max()


def _legend(axes: Any, weights: np.ndarray) -> None:
    """Say what the areas mean with three round weights."""
    largest = float(weights.max())
    for share in (0.1, 0.4, 1.0):
        weight = float(f"{share * largest:.1g}")
        area = float(_areas(weight, weights))
        axes.scatter(
            [], [], s=area, color="white", edgecolors="black", linewidths=0.9,
            label=f"weight {weight:,.6g}",
        )  # fmt: skip
    axes.legend(
        fontsize=11, frameon=True, framealpha=0.9, edgecolor="none", labelspacing=0.9,
        loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0,
    )  # fmt: skip
