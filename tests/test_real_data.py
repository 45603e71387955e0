"""The papers' data sets, from the folder named by DECOCT_DATA."""

import numpy as np
import pytest

import decoct

pytestmark = pytest.mark.data

FIGURES = [  # set, rows kept, KL in nats a plain prototype reached
    ("synth_lr", 20, 2e-5),
    ("phishing", 50, 6e-2),
    ("ds1", 20, 1.6),
    ("ds1", 50, 7e-2),
    ("synth_poiss", 10, 1e-5),
    ("biketrips", 50, 1e-2),
    ("airportdelays", 100, 4e-2),
]


def whitened(folder, name):
    """Centre and Cholesky-whiten all columns but the last, the intercept."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as archive:
        x, y = archive["X"].astype(float), archive["y"].astype(float)
    z = x[:, :-1] - x[:, :-1].mean(axis=0)
    factor = np.linalg.cholesky(np.atleast_2d(np.cov(z, rowvar=False)))
    return {"x": np.column_stack([np.linalg.solve(factor, z.T).T, np.ones(len(x))]), "y": y}


@pytest.mark.parametrize(("name", "size", "figure"), FIGURES)
def test_kl_is_below_the_prototypes(data_folder, name, size, figure):
    rows = whitened(data_folder, name)
    model = (
        decoct.models.LogisticRegression()
        if set(np.unique(rows["y"])) == {-1.0, 1.0}
        else decoct.models.PoissonRegression(link="softplus")
    )
    coreset = decoct.build(model, rows, size=size)
    fit = decoct.laplace(model, dict(coreset.rows), coreset.weights)
    assert coreset.size <= size
    assert decoct.kl_gaussian(fit, decoct.laplace(model, rows)) < figure


def test_a_large_table_is_certified(data_folder):
    with np.load(data_folder / "fertility_254k.npz", allow_pickle=False) as archive:
        x, y = archive["X"].astype(float), archive["y"]
    spread = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    model = decoct.models.LogisticRegression(intercept=True)
    rows = {"x": x, "y": y}
    coreset = decoct.build(model, rows, size=60)
    certificate = decoct.check(coreset, rows, coreset.sample(draws=250, warmup=300))
    assert certificate.ok
    assert certificate.kl_interval[1] < 1e-2
    assert coreset.report.passes <= 5
