"""Multilevel models: a site in likelihood parameters, whatever the prior does with scales."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions.iterated_hilbert import tangent_problem
from decoct.constructions.iterated_hilbert.settings import CERTIFYING_DRAWS
from decoct.errors import ModelError

N, G = 4000, 12
RNG = np.random.default_rng(0)
EFFECTS = 0.5 * RNG.normal(size=G)
GROUP = RNG.integers(G, size=N)
X = RNG.normal(size=N)
ETA = -0.5 + 0.7 * X + EFFECTS[GROUP]
BINARY = {"x": X, "g": GROUP, "y": (RNG.random(N) < 1.0 / (1.0 + np.exp(-ETA))).astype(float)}
NORMAL = {"x": X, "g": GROUP, "y": ETA + RNG.normal(size=N)}


def predictor(p, r):
    return p["a"] + p["b"] * r["x"] + p["u"][r["g"]]


def logistic(p, r):
    eta = predictor(p, r)
    return r["y"] * eta - jnp.logaddexp(0.0, eta)


def normal(p, r):
    return -0.5 * (r["y"] - predictor(p, r)) ** 2


def prior_of_scale(s):
    return -0.5 * jnp.exp(2.0 * s) + s


def log_prior_centred(p):
    of_effects = -0.5 * (p["u"] ** 2).sum() * jnp.exp(-2.0 * p["s"]) - G * p["s"]
    return -0.5 * (p["a"] ** 2 + p["b"] ** 2) + of_effects + prior_of_scale(p["s"])


def log_prior_standardised(p):
    of_effects = -0.5 * (p["z"] ** 2).sum()
    return -0.5 * (p["a"] ** 2 + p["b"] ** 2) + of_effects + prior_of_scale(p["s"])


@functools.cache
def made(log_likelihood, form):
    start = {"a": np.zeros(()), "b": np.zeros(()), "s": np.zeros(())}
    if form == "centred":
        return decoct.Model(
            log_likelihood,
            log_prior_centred,
            {**start, "u": np.zeros(G)},
            likelihood_params=lambda p: {name: p[name] for name in ("a", "b", "u")},
        )
    return decoct.Model(
        log_likelihood,
        log_prior_standardised,
        {**start, "z": np.zeros(G)},
        likelihood_params=lambda p: {
            "a": p["a"],
            "b": p["b"],
            "u": jnp.exp(p["s"]) * p["z"],
        },
    )


@functools.cache
def built(form):
    """Of binary responses: a site alone, and one with ten rows."""
    return decoct.path(made(logistic, form), BINARY, [0, 10])


@pytest.mark.parametrize("form", ["centred", "standardised"])
def test_no_row_is_needed_where_the_likelihood_is_quadratic(form):
    coreset = decoct.build(made(normal, form), NORMAL, size=0)
    assert coreset.site is not None
    assert coreset.site.dim == 2 + G
    assert coreset.dim == 3 + G
    assert coreset.report.predicted_kl < 1e-9


@pytest.fixture
def made_draws(monkeypatch):
    """How many draws NUTS makes, each time."""
    made, draw = [], decoct.samplers.NUTS.draw

    def counting(self, key, density, n):
        made.append(n)
        return draw(self, key, density, n)

    monkeypatch.setattr(decoct.samplers.NUTS, "draw", counting)
    return made


def test_rows_are_measured_without_draws_of_their_own(made_draws):
    coreset = decoct.build(made(logistic, "centred"), BINARY, size=10)
    (only,) = coreset.report.rounds
    assert coreset.report.status is decoct.Status.DONE
    assert made_draws[-2:] == [CERTIFYING_DRAWS, only["draws"]]


def test_no_more_draws_are_made_than_say_that_the_site_is_enough(made_draws, monkeypatch):
    """500, unless their chains disagree, as all do here at the second build."""
    options = {"size": 0, "sampler": decoct.samplers.NUTS()}
    coreset = decoct.build(made(normal, "centred"), NORMAL, **options)
    assert made_draws[-1] == CERTIFYING_DRAWS == coreset.report.rounds[-1]["draws"]
    monkeypatch.setattr(tangent_problem, "USABLE_RHAT", 0.0)
    with pytest.warns(decoct.ShortBuildWarning):
        coreset = decoct.build(made(normal, "centred"), NORMAL, **options)
    assert coreset.report.status is decoct.Status.UNKNOWN
    assert made_draws[-2] == CERTIFYING_DRAWS < made_draws[-1]


@pytest.mark.parametrize("form", ["centred", "standardised"])
def test_few_rows_carry_a_logistic_model(form):
    coreset = built(form)[1]
    assert coreset.site is not None
    assert coreset.report.status is decoct.Status.DONE
    draws = coreset.sample(draws=500, chains=4, seed=1, warmup=300)
    assert np.median(draws["sample_stats"]["n_steps"]) <= 31
    check = decoct.check(coreset, BINARY, draws)
    assert check.kl + 2.0 * check.kl_se < 0.02
    assert check.ok


@pytest.mark.parametrize("form", ["centred", "standardised"])
def test_terms_of_third_order_carry_the_skewness_of_groups(form):
    """Without a row, beside the same site without them."""
    coreset = built(form)[0]
    draws = coreset.sample(draws=500, chains=4, seed=1, warmup=300)
    bare = replace(coreset, site=coreset.site.quadratic())
    z = draws["unconstrained_posterior"]["z"].to_numpy().reshape(-1, coreset.dim)
    check, of_bare = decoct.check(coreset, BINARY, z), decoct.check(bare, BINARY, z)
    assert len(coreset.site.third_order.effects) == coreset.site.dim
    assert check.kl < 0.5 * of_bare.kl


def counts_of_groups_with_slopes(groups=60, n=6000):
    """Some groups of few rows, and a covariate that is not centred."""
    rng = np.random.default_rng(4)
    group = rng.choice(groups, n, p=rng.dirichlet(np.ones(groups)))
    x = 0.5 + rng.normal(size=n)
    effects = [0.5, 0.2] * rng.normal(size=(groups, 2))
    eta = -1.0 + 0.2 * x + effects[group, 0] + effects[group, 1] * x
    return {"x": x, "g": group, "y": rng.poisson(np.exp(eta)).astype(float)}, groups


def test_groups_with_slopes_have_terms_of_both_together():
    """Without a row; terms along intercepts and slopes alone leave 0.08 nats."""
    rows, groups = counts_of_groups_with_slopes()

    def log_likelihood(p, r):
        u = p["u"][r["g"]]
        eta = p["b"][0] + p["b"][1] * r["x"] + u[:, 0] + u[:, 1] * r["x"]
        return r["y"] * eta - jnp.exp(eta)

    def log_prior(p):
        of_effects = -0.5 * ((p["u"] * jnp.exp(-p["s"])[None]) ** 2).sum() - groups * p["s"].sum()
        return of_effects - 0.5 * (p["b"] ** 2).sum() + prior_of_scale(p["s"]).sum()

    start = {"b": np.zeros(2), "s": np.zeros(2), "u": np.zeros((groups, 2))}
    model = decoct.Model(
        log_likelihood, log_prior, start, likelihood_params=lambda p: {"b": p["b"], "u": p["u"]}
    )
    coreset = decoct.build(model, rows, size=0)
    check = decoct.check(coreset, rows)
    assert check.kl + 2.0 * check.kl_se < 0.02


def test_samplers_start_where_the_draws_of_the_build_were():
    """A site in φ = a² says nothing of the sign of a, and chains do not cross zero."""
    squared = decoct.Model(
        lambda p, r: -0.5 * (r["y"] - p["m"]) ** 2,
        lambda p: -0.5 * ((p["a"] - 3.0) / 10.0) ** 2,
        {"a": 1.0},
        likelihood_params=lambda p: {"m": p["a"] ** 2},
    )
    rows = {"y": 9.0 + np.random.default_rng(0).normal(size=400)}
    coreset = decoct.build(squared, rows, size=0)
    assert coreset.start == pytest.approx([3.0], abs=0.05)
    for start in (coreset.start, -coreset.start):
        draws = replace(coreset, start=start).sample(draws=100, seed=1)
        assert draws["posterior"]["a"].mean().item() == pytest.approx(start.item(), abs=0.05)


def test_likelihood_parameters_that_are_not_finite_are_refused():
    logarithm = decoct.Model(
        lambda p, r: -0.5 * (r["y"] - p["m"]) ** 2,
        lambda p: -0.5 * p["a"] ** 2,
        {"a": 0.0},
        likelihood_params=lambda p: {"m": jnp.log(p["a"])},
    )
    with pytest.raises(ModelError, match="not finite at the model's init"):
        decoct.build(logarithm, {"y": np.zeros(400)}, size=0)


@pytest.mark.parametrize(("is_indexed", "many"), [(True, 400), (True, 401), (False, 400)])
def test_likelihood_parameters_that_depend_on_rows_are_refused(is_indexed, many):
    group = np.arange(many) % 7
    start = {"b": 0.0, "s": 0.0, "unit": np.zeros(7)}
    model = decoct.Model(
        lambda p, r: -0.5 * (r["y"] - (p["eta"][r["place"]] if is_indexed else p["eta"])) ** 2,
        lambda p: -0.5 * (p["b"] ** 2 + p["s"] ** 2 + (p["unit"] ** 2).sum()),
        start,
        likelihood_params=lambda p: {"eta": p["b"] + jnp.exp(p["s"]) * p["unit"][group]},
    )
    rows = {"y": np.zeros(400), "place": np.arange(400)}
    with pytest.raises(ModelError, match=f"array of {many} numbers for 400 rows"):
        decoct.build(model, rows, size=0)


def test_both_forms_have_the_same_posterior():
    """Within Monte Carlo error: draws of each, of about 1,000 independent ones or more."""
    means = []
    for form in ("centred", "standardised"):
        coreset = built(form)[1]
        draws = coreset.sample(draws=500, chains=4, seed=2, warmup=300)["posterior"]
        means.append([float(draws[name].mean()) for name in ("b", "s")])
        sd = [float(draws[name].std()) for name in ("b", "s")]
    assert (np.abs(np.subtract(*means)) < 0.2 * np.array(sd)).all()


@pytest.mark.parametrize("form", ["centred", "standardised"])
def test_effects_that_are_not_there_leave_their_scale_near_zero(form):
    chance = 1.0 / (1.0 + np.exp(0.5 - 0.7 * X))
    rows = {**BINARY, "y": (np.random.default_rng(1).random(N) < chance).astype(float)}
    coreset = decoct.build(made(logistic, form), rows, size=10, seed=0)
    draws = coreset.sample(draws=500, chains=4, seed=1)
    assert decoct.check(coreset, rows, draws).kl < 0.05
    # the density of the scale is bounded at 0, and τ cannot be told from 0
    assert np.quantile(np.exp(draws["posterior"]["s"]), 0.05) < 0.05


def log_evidence_of_scale(s, rows):
    """Return log p(s, y) but for a constant, with a, b and z ~ N(0, I) integrated out."""
    design = np.column_stack([np.ones(N), X, np.exp(s) * np.eye(G)[GROUP]])
    precision = np.eye(2 + G) + design.T @ design
    mean = np.linalg.solve(precision, design.T @ rows["y"])
    log_determinant = np.linalg.slogdet(precision)[1]
    return 0.5 * (mean @ precision @ mean - log_determinant) + prior_of_scale(s)


@pytest.mark.parametrize("form", ["centred", "standardised"])
def test_a_scale_near_zero_is_sampled_as_quadrature_has_it(form):
    """Of effects that the data inform where it is large, and do not where it is near 0."""
    noise = np.random.default_rng(1).normal(size=N)
    rows = {**NORMAL, "y": 0.7 * X - 0.5 + 0.03 * EFFECTS[GROUP] + noise}
    coreset = decoct.build(made(normal, form), rows, size=0, seed=0)
    draws = coreset.sample(draws=1000, chains=4, seed=0)
    assert not draws["sample_stats"]["diverging"].any()
    s = np.linspace(-12.0, 2.0, 1401)
    log_density = np.array([log_evidence_of_scale(at, rows) for at in s])
    density = np.exp(log_density - log_density.max())
    below = np.cumsum(density) / density.sum()
    # uniform, if the draws have the density; 4,000 draws of s are some 1,400 independent ones
    levels = np.interp(draws["posterior"]["s"].values.ravel(), s, below)
    np.testing.assert_allclose(levels.mean(), 0.5, atol=4.0 / np.sqrt(12.0 * 1400.0))
    np.testing.assert_allclose((levels < 0.1).mean(), 0.1, atol=4.0 * np.sqrt(0.09 / 1400.0))


@pytest.mark.parametrize("number", [G, -1])
def test_group_numbers_outside_their_array_are_refused(number):
    rows = {**BINARY, "g": np.where(np.arange(N) == 17, number, GROUP)}
    with pytest.raises(decoct.RowsError, match="outside an array in row 17, "):
        decoct.build(made(logistic, "centred"), rows, size=0)


def by_row(p, r):
    eta = jax.lax.map(lambda one: p["a"] + p["b"] * one[0] + p["u"][one[1]], (r["x"], r["g"]))
    return r["y"] * eta - jnp.logaddexp(0.0, eta)


def taken(p, r):
    return logistic({**p, "u": jnp.take(p["u"], r["g"])}, {**r, "g": jnp.arange(len(r["g"]))})


@pytest.mark.parametrize(
    ("log_likelihood", "number"),
    [(jax.jit(logistic), -1), (taken, -1), (taken, G), (by_row, G)],
    ids=["jit, -1", "take, -1", "take", "map"],
)
def test_group_numbers_outside_are_refused_in_functions_that_are_called(log_likelihood, number):
    rows = {**BINARY, "g": np.where(np.arange(N) == 17, number, GROUP)}
    with pytest.raises(decoct.RowsError, match="outside an array in row 17, "):
        decoct.build(made(log_likelihood, "centred"), rows, size=0)


def test_a_kl_that_few_rows_do_not_reach_ends_a_build_after_one_round():
    method = decoct.constructions.IteratedHilbert(max_size=2)
    coreset = decoct.build(made(logistic, "standardised"), BINARY, kl=1e-6, method=method)
    assert coreset.report.status is decoct.Status.SHORT_SIZE
    (only,) = coreset.report.rounds
    assert coreset.report.predicted_kl > 1e-5
    assert only["predicted_kl"] > 1e-5


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_effects_of_groups_with_few_events_have_a_site_that_is_near():
    """Intercepts and slopes of 100 rows a group and 5 ones, along a column with outliers."""
    rng, groups = np.random.default_rng(2), 30
    group, x = np.repeat(np.arange(groups), 100), np.clip(1.5 * rng.standard_t(3, 3000), -6.0, 6.0)
    u, slope = 1.5 * rng.normal(size=groups), 0.7 * rng.normal(size=groups) - 1.0
    y = rng.random(3000) < 1.0 / (1.0 + np.exp(6.0 - u[group] - slope[group] * x))

    def log_likelihood(phi, r):
        eta = phi["a"] + phi["u"][r["g"]] + (phi["b"] + phi["v"][r["g"]]) * r["x"]
        return r["y"] * eta - jnp.logaddexp(0.0, eta)

    def log_prior(p):
        of_effects = -0.5 * ((p["z"] ** 2).sum() + (p["w"] ** 2).sum())
        of_scales = (-0.125 * jnp.exp(2.0 * p["s"]) + p["s"]).sum()
        return of_effects + of_scales - 0.5 * (p["a"] + 4.0) ** 2 / 9.0 - 0.5 * p["b"] ** 2 / 4.0

    def likelihood_params(p):
        tau = jnp.exp(p["s"])
        return {"a": p["a"], "b": p["b"], "u": tau[0] * p["z"], "v": tau[1] * p["w"]}

    start = {"a": -4.0, "b": 0.0, "s": np.zeros(2), "z": np.zeros(groups), "w": np.zeros(groups)}
    model = decoct.Model(log_likelihood, log_prior, start, likelihood_params=likelihood_params)
    coreset = decoct.build(model, {"x": x, "g": group, "y": y.astype(float)}, size=0)
    assert coreset.site is not None
    assert coreset.report.predicted_kl < 1.5
