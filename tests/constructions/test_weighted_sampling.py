"""Draws by scores: their distribution, and that nothing else decides them."""

import functools
import tracemalloc

import jax
import numpy as np
import pytest

import decoct
from decoct.constructions.sampling import weighted_sampling as home
from decoct.constructions.sampling.weighted_sampling import RowDraws, Spread, row_draws
from decoct.data.arrays import ArrayRows


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(home, "DRAWN_AT_ONCE", 16)


def table(scores):
    return decoct.rows({"s": np.asarray(scores, dtype=np.float64)})


def own_score(chunk):
    return chunk.columns["s"]


def draws(scores, n, seed=0, **how):
    return row_draws(jax.random.key(seed), table(scores), own_score, n, **how)


@pytest.mark.usefixtures("small_blocks")
def test_every_draw_follows_the_scores():
    """Blocks of unequal sums, one of zeros, and a last one that is short."""
    scores = np.random.default_rng(0).gamma(0.5, size=100)
    scores[16:32] = 0.0
    scores[[3, 97]] = [0.0, 20.0]
    n = 200_000
    found = draws(scores, n)
    expected = n * scores / scores.sum()
    counts = np.bincount(found.picks, minlength=100)
    assert (counts[expected == 0.0] == 0).all()
    seen = expected > 0.0
    chi2 = (np.square(counts - expected)[seen] / expected[seen]).sum()
    dof = seen.sum() - 1
    assert abs(chi2 - dof) < 4 * np.sqrt(2 * dof)
    np.testing.assert_array_equal(found.scores, scores[found.picks])


@pytest.mark.usefixtures("small_blocks")
def test_draws_know_nothing_of_one_another():
    """Pairs of neighbouring draws, and draws of two seeds: as often as the product says."""
    scores = np.repeat([1.0, 3.0, 2.0, 2.0], 10)
    one, two = (draws(scores, 40_000, seed).picks // 10 for seed in (1, 2))
    q = np.array([0.125, 0.375, 0.25, 0.25])
    for a, b in ((one[:-1], one[1:]), (one, two)):
        counts = np.zeros((4, 4))
        np.add.at(counts, (a, b), 1)
        expected = len(a) * np.outer(q, q)
        chi2 = (np.square(counts - expected) / expected).sum()
        assert abs(chi2 - 15) < 4 * np.sqrt(2 * 15)


@pytest.mark.usefixtures("small_blocks")
def test_the_race_is_the_one_of_the_docstring():
    scores = np.random.default_rng(1).gamma(1.0, size=75)
    seed = np.asarray(jax.random.key_data(jax.random.key(0)))
    clocks, candidates = [], []
    for b in range(5):
        own = scores[16 * b : 16 * b + 16]
        v, u = np.random.default_rng([*seed, b]).random((30, 2)).T
        candidates.append([16 * b + np.argmax(np.cumsum(own) > x * own.sum()) for x in v])
        clocks.append(-np.log(1.0 - u) / own.sum())
    first = np.argmin(clocks, axis=0)
    np.testing.assert_array_equal(
        draws(scores, 30).picks, np.asarray(candidates)[first, np.arange(30)]
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("size", [1, 7, 16, 40, 1000])
def test_no_chunking_and_no_bracketing_changes_a_bit(size):
    scores = np.random.default_rng(0).gamma(0.3, size=203)
    want = draws(scores, 50, size=203)
    for got in (draws(scores, 50, size=size), _in_a_tree(scores, 50, size)):
        for one, two in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, two)


def _in_a_tree(scores, n, size):
    return row_draws(jax.random.key(0), TreeRows({"s": scores}), own_score, n, size=size)


class TreeRows(ArrayRows):
    """As on a cluster: neighbours are added up first, then neighbours of those."""

    def map_reduce(self, fn, reduce, *broadcast, size, **_):
        parts = [fn(chunk, *broadcast) for chunk in self.chunks(size)]
        while len(parts) > 1:
            groups = [parts[i : i + 3] for i in range(0, len(parts), 3)]
            parts = [functools.reduce(reduce, group) for group in groups]
        return parts[0]


def test_more_draws_begin_with_the_fewer():
    scores = np.random.default_rng(0).gamma(0.3, size=40_000)
    few, many = draws(scores, 10), draws(scores, 1000)
    np.testing.assert_array_equal(few.picks, many.picks[:10])
    small, large = many.selections(table(scores), (10, 1000))
    np.testing.assert_array_equal(small.indices, np.unique(few.picks))
    assert large.size > small.size
    odds = scores / scores.sum()
    for one, size in ((small, 10), (large, 1000)):
        counts = one.weights * size * odds[one.indices]
        np.testing.assert_allclose(counts, np.round(counts), rtol=1e-9)
        assert counts.sum() == pytest.approx(size)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_entropy_and_total(scale):
    scores = np.random.default_rng(0).gamma(0.3, size=50_000)
    found = draws(scale * scores, 5)
    q = scores / scores.sum()
    assert found.total == pytest.approx(scale * scores.sum(), rel=1e-13)
    assert found.entropy == pytest.approx(-(q @ np.log(q)) / np.log(50_000), rel=1e-11)
    np.testing.assert_array_equal(found.picks, draws(scores, 5).picks)
    assert draws([2.5], 3) == RowDraws(*(pytest.approx(x) for x in ([0] * 3, [2.5] * 3, 2.5, 1.0)))


def test_spread_of_parts_is_that_of_the_whole():
    x = np.random.default_rng(0).normal(size=(1000, 3)) + 1e6
    parts = [Spread.of(piece) for piece in np.split(x, [1, 2, 500, 900])]
    whole = functools.reduce(lambda a, b: a + b, parts)
    assert whole.count == 1000
    np.testing.assert_allclose(whole.mean, x.mean(axis=0), rtol=1e-14)
    assert whole.squares == pytest.approx(np.square(x - x.mean(axis=0)).sum(), rel=1e-9)


def test_what_is_held_does_not_grow_with_the_rows():
    peaks = []
    for n in (100_000, 1_000_000):
        held = table(np.ones(n))
        tracemalloc.start()
        row_draws(jax.random.key(0), held, own_score, 2000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert abs(peaks[1] - peaks[0]) < 20_000
    assert peaks[1] < home.sampling_bytes(2000)
