"""How the weight of the table is spread over the kept rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoct.coreset import Coreset
from decoct.plots.style import COLOURS, GREY, figure, require_rows, style_axes


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
    >>> coreset = decoct.build(decoct.models.GaussianMean(np.eye(2)), rows, size=10)
    >>> decoct.plots.kept_weights(coreset).axes[0].get_ylabel()
    'weight, rows stood for'
    """
    require_rows(coreset)
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
