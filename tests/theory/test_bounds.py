"""The bounds against straightforward Frank-Wolfe and importance sampling, and brute force."""

from decimal import Decimal, getcontext

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.spatial.distance import pdist

from decoct.errors import RequestError
from decoct.theory import alignment
from decoct.theory.alignment import geometry
from decoct.theory.bounds import (
    bennett,
    bounds_report,
    eta_m,
    expected_importance_sampling_error,
    fixed_step_bound,
    frank_wolfe_bound,
    frank_wolfe_simple_bound,
    importance_sampling_bound,
    importance_sampling_simple_bound,
    inverse_bennett,
    merged_frank_wolfe_bound,
    merged_importance_sampling_bound,
    projection_bound,
    uniform_coreset_bound,
)


def gaussian_vectors(n, S, shift=0.5):
    rng = np.random.default_rng(n + S)
    return (rng.normal(size=(n, S)) + shift) * rng.gamma(2.0, size=(n, 1))


def logistic_vectors(n=400, draws=60):
    """Centred log-likelihoods of a logistic regression at draws near its posterior."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n, 3))
    y = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-x @ [1.0, -0.5, 0.2])), 1.0, -1.0)
    beta = np.array([1.0, -0.5, 0.2]) + 0.1 * rng.normal(size=(draws, 3))
    values = -np.log1p(np.exp(-(y[:, None] * x) @ beta.T))
    return values - values.mean(axis=1, keepdims=True)


CASES = {
    "plane": gaussian_vectors(50, 2),
    "space": gaussian_vectors(80, 3),
    "thin": gaussian_vectors(60, 4, shift=3.0),
    "wide": gaussian_vectors(200, 30),
    "line": np.outer(np.array([1.0, 2.0, -0.5, 3.0]), np.ones(5)),
    "logistic": logistic_vectors(),
}


def frank_wolfe_gaps(vectors, steps, exact=True):
    """Algorithm 2; L − L(w) after 1, ..., steps rows."""
    norms = np.linalg.norm(vectors, axis=1)
    vertices = norms.sum() * vectors / norms[:, None]
    total = vectors.sum(axis=0)
    current = vertices[np.argmax(vertices @ total)]
    gaps = [total - current]
    for t in range(steps - 1):
        direction = vertices[np.argmax(vertices @ (total - current))] - current
        length = direction @ direction
        step = direction @ (total - current) / length if length else 0.0
        current = current + (step if exact else 2.0 / (3 * t + 4)) * direction
        gaps.append(total - current)
    return np.array(gaps)


def frank_wolfe(*how, **options):
    """The errors ‖L(w) − L‖."""
    return np.linalg.norm(frank_wolfe_gaps(*how, **options), axis=1)


def importance_sampling_gaps(rng, vectors, size, trials):
    """Algorithm 1; L(W) − L of every trial."""
    norms = np.linalg.norm(vectors, axis=1)
    counts = rng.multinomial(size, norms / norms.sum(), size=trials)
    weights = norms.sum() / norms * counts / size
    return weights @ vectors - vectors.sum(axis=0)


@pytest.mark.parametrize("case", CASES)
def test_frank_wolfe_stays_below_its_bounds_at_every_size(case):
    vectors, sizes = CASES[case], np.arange(1, 121)
    g = geometry(vectors)
    slack = 1.0 + 1e-9  # with two directions the bound at M = 1 is met exactly
    round_off = 1e-13 * g.sigma
    exact, fixed = frank_wolfe(vectors, 120), frank_wolfe(vectors, 120, exact=False)
    assert (exact <= frank_wolfe_bound(g, sizes) * slack + round_off).all()
    assert (frank_wolfe_bound(g, sizes) <= frank_wolfe_simple_bound(g, sizes) * slack).all()
    assert (fixed <= fixed_step_bound(g, sizes) * slack).all()
    assert exact[0] > 0.0


@pytest.mark.parametrize("case", ["plane", "space", "wide", "logistic"])
@pytest.mark.parametrize("size", [1, 10, 100])
def test_importance_sampling_fails_no_oftener_than_delta(case, size):
    vectors, delta, trials = CASES[case], 0.2, 1000
    g = geometry(vectors)
    gaps = importance_sampling_gaps(np.random.default_rng(size), vectors, size, trials)
    errors = np.linalg.norm(gaps, axis=1)
    allowed = delta + 4.0 * np.sqrt(delta * (1.0 - delta) / trials)
    for bound in (
        uniform_coreset_bound(g, size, delta),
        importance_sampling_bound(g, size, delta),
        importance_sampling_simple_bound(g, size, delta),
    ):
        assert (errors > bound).mean() <= allowed
    squares = errors**2
    expected = expected_importance_sampling_error(g, size) ** 2
    assert abs(squares.mean() - expected) < 4.0 * squares.std(ddof=1) / np.sqrt(trials)


@pytest.mark.parametrize("n", [10, 20])
def test_frank_wolfe_falls_linearly_and_no_slower_than_nu(n):
    vectors = gaussian_vectors(n, 3, shift=0.0)  # L well inside the hull
    g = geometry(vectors)
    errors = frank_wolfe(vectors, 60)
    errors = errors[errors > 1e-11 * g.sigma]  # above round-off
    steps = np.arange(len(errors))
    assert len(errors) >= 15
    assert (errors[1:] <= g.nu * errors[:-1]).all()
    assert np.polyfit(steps, np.log(errors), 1)[0] <= np.log(g.nu)
    assert np.corrcoef(steps, np.log(errors))[0, 1] < -0.98


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_merged_bounds_hold_for_coresets_built_apart(parts):
    vectors, size, delta, trials = CASES["space"], 10, 0.2, 500
    g, pieces = geometry(vectors), np.array_split(vectors, parts)
    rng = np.random.default_rng(parts)
    sampled = sum(importance_sampling_gaps(rng, piece, size, trials) for piece in pieces)
    greedy = sum(frank_wolfe_gaps(piece, size)[-1] for piece in pieces)
    errors = np.linalg.norm(sampled, axis=1)
    bound = merged_importance_sampling_bound(g, size, parts, delta)
    assert (errors > bound).mean() <= delta + 4.0 * np.sqrt(delta * (1.0 - delta) / trials)
    assert np.linalg.norm(greedy) <= merged_frank_wolfe_bound(g, size)
    assert bound >= importance_sampling_simple_bound(g, size, delta)


@pytest.mark.parametrize("case", CASES)
def test_constants_follow_their_definitions(case):
    vectors = CASES[case]
    g = geometry(vectors)
    norms = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(g.norms, norms, rtol=1e-14)
    assert g.sigma == pytest.approx(norms.sum(), rel=1e-13)
    total = np.linalg.norm(vectors.sum(axis=0))
    assert g.eta**2 == pytest.approx(1.0 - (total / norms.sum()) ** 2, rel=1e-10)
    assert g.etabar == pytest.approx(pdist(vectors / norms[:, None]).max(), rel=1e-12)
    assert g.etabar_exact
    assert g.eta <= g.etabar / np.sqrt(2.0) * (1.0 + 1e-12)
    assert g.dim <= np.linalg.matrix_rank(vectors)


def support_radius(vectors):
    """min over directions v of max_n ⟨p_n, v⟩: the distance from L/σ to the hull's boundary."""
    norms = np.linalg.norm(vectors, axis=1)
    points = vectors / norms[:, None] - vectors.sum(axis=0) / norms.sum()
    directions = np.random.default_rng(0).normal(size=(20_000, vectors.shape[1]))

    def support(v):
        return (points @ v).max() / np.linalg.norm(v)

    heights = (directions @ points.T).max(axis=1) / np.linalg.norm(directions, axis=1)
    starts = directions[np.argsort(heights)[:5]]
    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 4000}
    return min(minimize(support, v, method="Nelder-Mead", options=options).fun for v in starts)


@pytest.mark.parametrize(("n", "S"), [(6, 2), (40, 2), (6, 3), (40, 3), (30, 4)])
def test_nu_agrees_with_a_search_over_directions(n, S):
    vectors = gaussian_vectors(n, S, shift=0.2)
    g = geometry(vectors)
    radius = g.etabar * np.sqrt(1.0 - g.nu**2)
    assert g.nu_exact
    assert radius == pytest.approx(support_radius(vectors), rel=1e-5)
    assert np.sqrt(0.75) <= g.nu < 1.0


@pytest.mark.parametrize("S", [2, 3])
def test_nu_agrees_with_linear_programmes(S):
    # The farthest point of the hull from L in a direction: never nearer than r.
    vectors = gaussian_vectors(12, S, shift=0.2)
    g = geometry(vectors)
    radius = g.etabar * np.sqrt(1.0 - g.nu**2)
    norms = np.linalg.norm(vectors, axis=1)
    units, centre = vectors / norms[:, None], vectors.sum(axis=0) / norms.sum()
    directions = np.random.default_rng(1).normal(size=(300, S))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    reaches = []
    for v in directions:
        equal = np.vstack([np.column_stack([units.T, -v]), np.append(np.ones(12), 0.0)])
        goal = np.append(np.zeros(12), -1.0)
        reaches.append(-linprog(goal, A_eq=equal, b_eq=np.append(centre, 1.0)).fun)
    assert radius <= min(reaches) * (1.0 + 1e-9)
    assert radius >= min(reaches) * (0.99 if S == 2 else 0.9)


def test_nu_on_a_line_and_in_a_plane_of_a_large_space():
    g = geometry(np.array([[3.0, 0.0], [-1.0, 0.0]]))  # L/σ = 1/2 between −1 and 1
    assert (g.eta, g.etabar) == pytest.approx((np.sqrt(0.75), 2.0))
    assert g.nu == pytest.approx(np.sqrt(1.0 - (0.5 / 2.0) ** 2))
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 50)))[0][:3]
    turned = geometry(CASES["space"] @ turn)
    assert turned.nu == pytest.approx(geometry(CASES["space"]).nu, rel=1e-10)
    assert turned.dim == 3


def test_nu_is_not_made_up():
    assert geometry(CASES["wide"]).nu is None
    assert geometry(CASES["logistic"]).nu is None
    g = geometry(CASES["wide"])
    assert frank_wolfe_bound(g, 7) == pytest.approx(
        g.sigma * g.eta * g.etabar / np.sqrt(g.etabar**2 + 6.0 * g.eta**2)
    )


def test_a_hull_that_grows_too_large_gives_an_upper_bound(monkeypatch):
    vectors = gaussian_vectors(400, 4, shift=0.2)
    whole = geometry(vectors)
    monkeypatch.setattr(alignment, "MAX_FACETS", 300)
    part = geometry(vectors)
    assert whole.nu_exact
    assert not part.nu_exact
    assert whole.nu < part.nu < 1.0


def test_too_many_pairs_give_an_upper_bound(monkeypatch):
    vectors = gaussian_vectors(300, 5, shift=0.2)
    exact = geometry(vectors)
    monkeypatch.setattr(alignment, "MAX_PAIRS", 20)
    loose = geometry(vectors)
    assert not loose.etabar_exact
    assert exact.etabar <= loose.etabar <= 2.0
    assert "η̄ ≤" in str(loose)
    assert not loose.nu_exact
    assert loose.nu >= exact.nu


def test_blocks_change_nothing(monkeypatch):
    vectors = gaussian_vectors(300, 20)
    usual = geometry(vectors)
    monkeypatch.setattr(alignment, "NUMBERS_AT_ONCE", 1000)
    blocks = geometry(vectors)
    assert blocks.etabar == usual.etabar
    assert blocks.dim == usual.dim


def test_zero_equal_and_single_vectors():
    vectors = CASES["space"]
    with_zeros = geometry(np.concatenate([vectors, np.zeros((3, 3))]))
    without = geometry(vectors)
    assert (with_zeros.sigma, with_zeros.etabar, with_zeros.nu) == pytest.approx(
        (without.sigma, without.etabar, without.nu)
    )
    assert with_zeros.n_vectors == 83
    assert with_zeros.norms[-1] == 0.0
    for same in (np.outer([1.0, 2.0, 4.0], [0.3, 0.1]), np.array([[0.3, 0.1]]), np.zeros((2, 2))):
        g = geometry(same)
        assert g.nu is None
        for bound in (
            importance_sampling_bound,
            importance_sampling_simple_bound,
            expected_importance_sampling_error,
            frank_wolfe_bound,
            frank_wolfe_simple_bound,
            fixed_step_bound,
        ):
            assert bound(g, np.array([1, 10])) == pytest.approx(np.zeros(2), abs=1e-14)


def test_nearly_aligned_vectors_keep_their_digits():
    # angles ±a about an axis: η = sin a, η̄ = 2 sin a; 1 − ‖L‖²/σ² would have no digit left
    for a in (1e-3, 1e-9):
        g = geometry(np.array([[1.0, np.tan(a)], [1.0, -np.tan(a)]]))
        assert g.eta == pytest.approx(np.sin(a), rel=1e-6)
        assert g.etabar == pytest.approx(2.0 * np.sin(a), rel=1e-6)
        assert g.nu == pytest.approx(np.sqrt(0.75), rel=1e-6)


def test_dimension_counts_what_the_definition_allows():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(400, 2)) @ rng.normal(size=(2, 20))
    assert geometry(flat).dim == 2
    assert geometry(rng.normal(size=(400, 3))).dim == 3
    noisy = flat + 1e-3 * rng.normal(size=(400, 20))  # within 2/√400 of a plane
    d = geometry(noisy).dim
    units = noisy / np.linalg.norm(noisy, axis=1)[:, None]
    axes = np.linalg.svd(units, full_matrices=False)[2]
    for fewer in (1, d):
        left = np.linalg.norm(units - units @ axes[:fewer].T @ axes[:fewer], axis=1).max()
        assert (left <= fewer / 20.0) == (fewer == d)
    assert d < 20


def exact_bennett(y):
    getcontext().prec = 60
    y = Decimal(float(y))
    return (1 + y) * (1 + y).ln() - y


@pytest.mark.parametrize("y", [1e-12, 1e-7, 1e-3, 0.05, 0.0999, 0.1, 0.101, 0.4, 1.0, 30.0, 1e9])
def test_bennett_and_its_inverse(y):
    expected = exact_bennett(y)
    assert bennett(y) == pytest.approx(float(expected), rel=1e-13)
    assert inverse_bennett(float(expected)) == pytest.approx(y, rel=1e-12)


def test_inverse_bennett_at_the_ends():
    np.testing.assert_array_equal(inverse_bennett(np.array([0.0, 1.0])), [0.0, np.e - 1.0])
    with pytest.raises(RequestError, match="x ≥ 0"):
        inverse_bennett(-1.0)


def test_eta_m_falls_from_eta_bar_to_root_two_eta():
    g = geometry(CASES["space"])
    sizes = np.array([1, 10, 10**3, 10**6, 10**10])
    values = eta_m(g, sizes, 0.05)
    assert (np.diff(values) < 0.0).all()
    assert (values <= g.etabar).all()
    # H(y) = y²/2 − …, so the limit is √2 η
    assert values[-1] / g.eta == pytest.approx(np.sqrt(2.0), rel=1e-4)
    orthogonal = geometry(np.eye(10))
    assert eta_m(orthogonal, 1, 0.05) == orthogonal.etabar  # the other side of the minimum


def test_bounds_are_the_equations():
    g, M, log_odds = geometry(CASES["plane"]), 9, np.log(20.0)
    sigma, eta, etabar, nu = g.sigma, g.eta, g.etabar, g.nu
    x = etabar**2 * log_odds / (2 * M * eta**2)
    etam = min(etabar, eta / np.sqrt(x) * inverse_bennett(x))
    tail = np.sqrt(2 * log_odds)
    expected = {
        uniform_coreset_bound: sigma / 3 * (1.5 * 2 + etabar * tail),
        importance_sampling_bound: sigma / 3 * (eta + etam * tail),
        importance_sampling_simple_bound: sigma * etabar / 3 * (1 + tail),
        frank_wolfe_bound: sigma * eta * etabar * nu / np.sqrt(etabar**2 / nu**14 + eta**2 * 8),
        frank_wolfe_simple_bound: sigma * etabar / 3,
        fixed_step_bound: 2 * sigma * etabar / np.sqrt(28),
    }
    for bound, value in expected.items():
        assert bound(g, M) == pytest.approx(value, rel=1e-12)
    assert frank_wolfe_bound(g, 1) == pytest.approx(sigma * eta, rel=1e-12)
    assert frank_wolfe_bound(g, 10**9) == 0.0  # and no overflow on the way
    assert merged_importance_sampling_bound(g, M, 4) == pytest.approx(
        sigma * etabar / 3 * (1 + np.sqrt(2 * np.log(80.0)))
    )


def test_projection_bound_covers_the_true_error():
    # L_n(μ) = cos(a_n μ), μ ~ N(0, 1): products in [−1, 1], so ξ² = 1, and known expectations.
    rng = np.random.default_rng(0)
    a, w, J, delta = rng.normal(size=6), np.array([0.0, 2.0, 0.0, 3.0, 0.5, 0.0]), 400, 0.2
    minus, plus = a[:, None] - a[None], a[:, None] + a[None]
    gram = 0.5 * (np.exp(-(minus**2) / 2) + np.exp(-(plus**2) / 2))
    true = np.sqrt((w - 1.0) @ gram @ (w - 1.0))
    vectors = np.cos(rng.normal(size=(300, 1, J)) * a[None, :, None]) / np.sqrt(J)
    projected = np.linalg.norm(np.einsum("n,tnj->tj", w - 1.0, vectors), axis=1)
    bound = projection_bound(
        projected, np.abs(w - 1.0).sum(), xi2=1.0, draws=J, n_rows=6, delta=delta
    )
    assert (true > bound).mean() <= delta
    assert (true > projected).mean() > delta  # the projection alone would not do
    assert projection_bound(3.0, 2.0, xi2=0.5, draws=9, n_rows=7) == pytest.approx(
        np.sqrt(9.0 + 4.0 * np.sqrt(np.log(2 * 49 / 0.05) / 9.0))
    )


def test_the_table_prints_bounds_next_to_errors():
    vectors, sizes = CASES["plane"], [1, 10, 100]
    g = geometry(vectors)
    errors = frank_wolfe(vectors, 100)[np.array(sizes) - 1]
    table = bounds_report(g, sizes, {"frank_wolfe": errors}, delta=0.1, parts=3)
    greedy = [row for row in table.rows if row.method == "frank_wolfe"]
    assert [row.size for row in greedy] == [1, 1, 10, 10, 100, 100]
    assert all(row.achieved <= row.bound * (1 + 1e-9) for row in greedy)
    assert all(row.achieved is None for row in table.rows if row.method != "frank_wolfe")
    assert greedy[2].bound == frank_wolfe_bound(g, 10)
    assert greedy[3].bound == frank_wolfe_simple_bound(g, 10)
    lines = str(table).splitlines()
    assert len(lines) == 2 + 3 * 9
    assert "δ = 0.1" in lines[0]
    assert len({len(line) for line in lines[1:]}) == 1
    assert any("Eq. 4.13), 3 parts" in line for line in lines)
    assert not any("parts" in line for line in str(bounds_report(g, 5)).splitlines())


def test_bad_requests_are_sentences():
    g = geometry(CASES["plane"])
    for delta in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(RequestError, match="delta"):
            importance_sampling_bound(g, 10, delta)
    for size in (0, -3, [5, 0]):
        with pytest.raises(RequestError, match="at least 1"):
            frank_wolfe_bound(g, size)
    with pytest.raises(RequestError, match="whole number"):
        fixed_step_bound(g, np.array([2.5]))
    with pytest.raises(RequestError, match="parts"):
        merged_importance_sampling_bound(g, 10, 0)
    with pytest.raises(RequestError, match="no bound for the method 'giga'"):
        bounds_report(g, [1], {"giga": [1.0]})
    with pytest.raises(RequestError, match="one error per size"):
        bounds_report(g, [1, 2], {"frank_wolfe": [1.0]})
    with pytest.raises(RequestError, match="xi2"):
        projection_bound(1.0, 1.0, xi2=-1.0, draws=5, n_rows=5)
    with pytest.raises(RequestError, match="draws"):
        projection_bound(1.0, 1.0, xi2=1.0, draws=0, n_rows=5)


def test_bad_vectors_are_named():
    vectors = CASES["plane"].copy()
    assert geometry(vectors, vectors.sum(axis=0)).eta == geometry(vectors).eta
    with pytest.raises(RequestError, match="not the sum"):
        geometry(vectors, 1.01 * vectors.sum(axis=0))
    with pytest.raises(ValueError, match=r"at least \(1, 1\)"):
        geometry(np.zeros((0, 3)))
    vectors[7, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        geometry(vectors)
