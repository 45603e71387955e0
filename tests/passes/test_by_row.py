"""Numbers of every row, whatever the chunks; a row that has none is named."""

import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.data import encoded
from decoct.errors import PotentialError
from decoct.passes import potentials as module
from decoct.passes.by_row import Pieces, RowStatistic
from decoct.passes.potentials import Potentials

DRAWS = np.random.default_rng(1).normal(size=(40, 3))
RNG = np.random.default_rng(0)
TABLE = {"x": RNG.normal(size=(700, 3)), "y": RNG.integers(0, 2, 700)}


class Extremes(RowStatistic):
    def measure(self, potentials):
        return potentials.T, jnp.max(potentials, axis=0)

    def finish(self, measured):
        potentials, largest = measured
        return potentials.min(axis=1), largest


def potentials(model=None):
    model = model or decoct.models.LogisticRegression()
    return Potentials(model, encoded(decoct.rows(TABLE), model))


@pytest.mark.parametrize("size", [None, 128, 256])
def test_numbers_come_in_row_order_from_one_pass(size, monkeypatch):
    if size is not None:
        monkeypatch.setattr(module, "chunk_rows", lambda _: size)
    ours = potentials()
    totals, smallest, largest = ours.by_row(DRAWS, Extremes())
    sign = 2.0 * TABLE["y"] - 1.0
    values = -np.logaddexp(0.0, -sign[:, None] * (TABLE["x"] @ DRAWS.T))
    np.testing.assert_allclose(smallest, values.min(axis=1), rtol=1e-12)
    np.testing.assert_allclose(largest, values.max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(totals, values.sum(axis=0), rtol=1e-12)
    assert (ours.counts.passes, ours.counts.evaluations) == (1, 700 * 40)


def test_pieces_are_put_in_order():
    first, second = (
        Pieces(((start, (np.arange(start, start + 2),)),), np.ones(1)) for start in (0, 2)
    )
    totals, numbers = (second + first).joined()
    assert list(totals) == [2.0]
    assert list(numbers) == [0, 1, 2, 3]


def test_a_row_that_is_impossible_at_a_draw_is_named():
    def log_likelihood(params, rows):
        return jnp.where(rows["x"][:, 0] > params["most"], -jnp.inf, -params["most"])

    model = decoct.Model(log_likelihood, lambda p: -(p["most"] ** 2), {"most": 10.0}, ["x"])
    largest = int(TABLE["x"][:, 0].argmax())
    most = np.array([[9.0], [TABLE["x"][largest, 0] - 1e-6]])
    with pytest.raises(PotentialError, match=f"row {largest} is -inf at draw 1"):
        potentials(model).by_row(most, Extremes())
