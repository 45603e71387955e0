"""Which groups have rows in the coreset."""

from __future__ import annotations

import numpy as np
import pytest

import decoct
import decoct.plots
from decoct.constructions import Uniform

pytest.importorskip("matplotlib")

N, G = 3000, 20


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    port = np.array([f"port {g}" for g in range(G)], dtype=object)[rng.integers(G, size=N)]
    return {"x": rng.normal(size=(N, 2)), "port": port}


@pytest.fixture(scope="module")
def coreset(table):
    model = decoct.models.GaussianMean(np.eye(2))
    return decoct.build(model, table, size=12, method=Uniform())


def test_weights_are_drawn_over_the_sizes_of_groups(table, coreset):
    figure = decoct.plots.kept_by_group(coreset, table, "port")
    without, with_rows = (line.get_xydata() for line in figure.axes[0].lines)
    sizes = {name: (table["port"] == name).sum() for name in set(table["port"])}
    kept = table["port"][coreset.indices]
    expected = {(sizes[k], coreset.weights[kept == k].sum()) for k in set(kept)}
    assert {tuple(point) for point in with_rows.round(8)} == {
        (size, weight.round(8)) for size, weight in expected
    }
    assert sorted(without[:, 0]) == sorted(sizes[k] for k in set(sizes) - set(kept))
    figure.draw_without_rendering()


def test_what_is_no_group_is_refused(table, coreset):
    with pytest.raises(decoct.RequestError, match="'x' is not one group per row"):
        decoct.plots.kept_by_group(coreset, table, "x")
    with pytest.raises(decoct.DecoctError, match="no column 'quay'"):
        decoct.plots.kept_by_group(coreset, table, "quay")
    short = {name: column[:-1] for name, column in table.items()}
    with pytest.raises(decoct.CoresetFileError, match="2999"):
        decoct.plots.kept_by_group(coreset, short, "port")
