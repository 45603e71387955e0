"""Predictions against closed forms, SciPy, and NumPy at the same draws."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import decoct
from decoct.constructions import IteratedHilbert, Uniform
from decoct.models import (
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    StudentTRegression,
    from_formula,
)
from tests.problems import LINEAR, LOGISTIC, D, X, coreset

RNG = np.random.default_rng(8)
NEW = RNG.normal(size=(40, D))
DRAWS = 0.3 * RNG.normal(size=(500, D))
FEW = {name: values[:50] for name, values in LINEAR.items()}


def kept(model, rows, size=4):
    """A coreset made without a fit: what it keeps does not matter here, the draws are given."""
    return decoct.build(model, rows, size=size, method=Uniform())


def summary(values, quantiles=(0.05, 0.5, 0.95)):
    lines = [values.mean(axis=0), values.std(axis=0, ddof=1)]
    return np.stack([*lines, *np.quantile(values, quantiles, axis=0)], axis=1)


def test_the_predictive_of_a_linear_model_is_the_closed_form():
    """θ ~ N(m, V): x·θ ~ N(x·m, xᵀVx), and a new response has σ² more variance."""
    sigma, n_draws = 0.7, 20_000
    model = LinearRegression(prior_scale=2.0, noise_scale=sigma)
    covariance = np.linalg.inv(np.eye(D) / 4.0 + FEW["x"].T @ FEW["x"] / sigma**2)
    mean = covariance @ FEW["x"].T @ FEW["y"] / sigma**2
    draws = np.random.default_rng(1).multivariate_normal(mean, covariance, n_draws)
    site = decoct.build(model, FEW, size=0)
    exact = site.sample(draws=n_draws, chains=1, sampler=decoct.samplers.Exact(), seed=2)
    quantiles = (0.025, 0.5, 0.9)
    spread = np.sqrt(np.einsum("nd,de,ne->n", NEW, covariance, NEW))
    for given in (draws, exact):
        for kind, sd in (("mean", spread), ("response", np.hypot(spread, sigma))):
            found = site.predict({"x": NEW}, given, kind=kind, quantiles=quantiles, seed=3)
            assert list(found.columns) == ["mean", "sd", "q2.5", "q50", "q90"]
            # five Monte Carlo standard errors of means, sds and quantiles of S draws
            unit = 5.0 / np.sqrt(n_draws)
            assert (np.abs(found["mean"] - NEW @ mean) < unit * sd).all()
            assert (np.abs(found["sd"] / sd - 1.0) < unit * np.sqrt(0.5)).all()
            for q in quantiles:
                at = stats.norm.ppf(q)
                error = unit * np.sqrt(q * (1 - q)) / stats.norm.pdf(at)
                away = np.abs(found[f"q{100 * q:g}"] - (NEW @ mean + at * sd))
                assert (away < error * sd).all()


def test_logistic_against_numpy_with_and_without_a_site():
    wanted = summary(1.0 / (1.0 + np.exp(-DRAWS @ NEW.T)))
    alone = decoct.build(
        LogisticRegression(), LOGISTIC, size=20, method=IteratedHilbert(site=False)
    )
    for one in (coreset(), alone):
        found = one.predict({"x": NEW}, DRAWS)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        assert found.index.equals(pd.RangeIndex(40))
    # the response is not read, whatever is in its place
    beside = coreset().predict({"y": np.full(40, np.nan), "x": NEW}, DRAWS)
    np.testing.assert_array_equal(beside, found)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (PoissonRegression(link="log"), np.exp),
        (PoissonRegression(), lambda eta: np.log1p(np.exp(eta))),
        (StudentTRegression(nu=4.0), lambda eta: eta),
        (LinearRegression(), lambda eta: eta),
    ],
    ids=["log", "softplus", "student", "unknown noise"],
)
def test_expected_responses_against_numpy(model, expected):
    one = kept(model, {"x": X, "y": RNG.poisson(1.0, len(X))})
    draws = np.concatenate([DRAWS, RNG.normal(size=(500, one.dim - D))], axis=1)
    np.testing.assert_allclose(
        one.predict({"x": NEW}, draws), summary(expected(DRAWS @ NEW.T)), rtol=1e-12
    )


BETA = np.array([0.5, -0.3, 0.2])
GAMMA = np.array([-0.2, 0.1, 0.3])


@pytest.mark.parametrize(
    ("model", "extra", "law"),
    [
        (LinearRegression(), [np.log(0.4)], lambda x: stats.norm(x @ BETA, 0.4)),
        (LinearRegression(noise_scale=2.0), [], lambda x: stats.norm(x @ BETA, 2.0)),
        (
            StudentTRegression(),
            [np.log(3.0), np.log(0.4)],  # ν, then the scale
            lambda x: stats.t(3.0, x @ BETA, [0.4]),
        ),
        (
            StudentTRegression(nu=5.0, scale="log-linear"),
            GAMMA,
            lambda x: stats.t(5.0, x @ BETA, np.exp(x @ GAMMA)),
        ),
        (PoissonRegression(link="log"), [], lambda x: stats.poisson(np.exp(x @ BETA))),
        (LogisticRegression(), [], lambda x: stats.bernoulli(1 / (1 + np.exp(-x @ BETA)))),
    ],
    ids=["linear", "known noise", "student", "log-linear", "poisson", "logistic"],
)
def test_new_responses_have_the_law_of_the_model(model, extra, law):
    """At draws that are all alike, their frequencies are those of SciPy's distributions."""
    one, n_draws = kept(model, {"x": X, "y": np.arange(len(X)) % 2}), 20_000
    draws = np.tile(np.concatenate([BETA, extra]), (n_draws, 1))
    x = NEW[:8]
    quantiles = (0.1, 0.5, 0.9)
    found = one.predict({"x": x}, draws, kind="response", quantiles=quantiles, seed=4)
    for q in quantiles:
        at = found[f"q{100 * q:g}"].to_numpy()
        # of n draws the share up to their own q-quantile is q, within 5 binomial errors
        allowed = 5.0 * np.sqrt(q * (1 - q) / n_draws)
        assert (law(x).cdf(at + 1e-9) >= q - allowed).all()
        assert (law(x).cdf(at - 1e-9) <= q + allowed).all()
    if not isinstance(model, StudentTRegression):
        away = np.abs(found["mean"] - law(x).mean())
        assert (away < 5.0 * law(x).std() / np.sqrt(n_draws)).all()
    again = one.predict({"x": x}, draws, kind="response", quantiles=quantiles, seed=4)
    np.testing.assert_array_equal(again, found)
    other = one.predict({"x": x}, draws, kind="response", quantiles=quantiles, seed=5)
    assert not np.array_equal(other["mean"], found["mean"])


@pytest.fixture(scope="module")
def flights():
    """A formula's coreset, and draws of it."""
    temp, origin = RNG.normal(20.0, 5.0, 300), RNG.choice(["EWR", "JFK", "LGA"], 300)
    table = {"temp": temp, "origin": origin, "late": RNG.integers(0, 2, 300)}
    model = from_formula("late ~ temp * C(origin) + np.log(temp**2)", table, "bernoulli")
    return kept(model, table), 0.3 * RNG.normal(size=(500, 7))


def test_a_formula_on_a_table_without_the_response(flights):
    one, draws = flights
    new = pd.DataFrame({"origin": ["LGA", "EWR", "JFK", "LGA"], "temp": [-3.0, 21.0, 30.5, 8.0]})
    jfk, lga = new["origin"] == "JFK", new["origin"] == "LGA"
    temp = new["temp"]
    columns = {
        "Intercept": 1.0 + 0.0 * temp,
        "C(origin)[T.JFK]": jfk,
        "C(origin)[T.LGA]": lga,
        "temp": temp,
        "temp:C(origin)[T.JFK]": temp * jfk,
        "temp:C(origin)[T.LGA]": temp * lga,
        "np.log(temp ** 2)": np.log(temp**2),
    }
    names = one.model.design.names
    assert set(names) == set(columns)
    x = np.stack([columns[name].to_numpy(dtype=float) for name in names])
    eta = one.model.unscaled(draws) @ x
    found = one.predict(new.assign(note="text", late=None), draws)
    np.testing.assert_allclose(found, summary(1.0 / (1.0 + np.exp(-eta))), rtol=1e-9)


def test_an_intercept_alone_needs_no_column_of_its_own():
    model = from_formula("y ~ 1", FEW_COLUMNS, "gaussian")
    found = kept(model, FEW_COLUMNS).predict(
        {"any": ["a", "b"]}, np.array([[1.0, 0.0], [3.0, 0.0]])
    )
    assert found["mean"].tolist() == [2.0, 2.0]


FEW_COLUMNS = {"y": FEW["y"], "a": FEW["x"][:, 0]}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr("decoct.passes.potentials.POTENTIALS_PER_CHUNK", 1)
    monkeypatch.setattr("decoct.passes.potentials.MOST_ROWS", 512)


@pytest.mark.parametrize("kind", ["mean", "response"])
def test_files_in_many_chunks_give_the_bits_of_memory(kind, tmp_path, small_pieces):
    table = {"a": RNG.normal(size=1900), "b": RNG.choice(["u", "v"], 1900)}
    fitted = {**table, "y": RNG.normal(size=1900)}
    one = kept(from_formula("y ~ a * b", fitted, "student"), fitted)
    draws = 0.3 * RNG.normal(size=(60, one.dim))
    for part, (begin, end) in enumerate([(0, 700), (700, 701), (701, 1900)]):
        piece = pa.table({name: values[begin:end] for name, values in table.items()})
        pq.write_table(piece, tmp_path / f"{part}.parquet")
    in_memory = one.predict(table, draws, kind=kind)
    streamed = one.predict(tmp_path, draws, kind=kind)
    pd.testing.assert_frame_equal(in_memory, streamed, check_exact=True)
    frames = list(one.predict_chunks(tmp_path, draws, kind=kind))
    assert [len(frame) for frame in frames] == [256] * 7 + [108]
    assert streamed.index.equals(pd.RangeIndex(1900))
    pd.testing.assert_frame_equal(pd.concat(frames), streamed, check_exact=True)


def test_pieces_do_not_matter_for_expected_responses(monkeypatch):
    rows = {"x": np.tile(NEW, (30, 1))}
    whole = coreset().predict(rows, DRAWS)
    monkeypatch.setattr("decoct.passes.potentials.POTENTIALS_PER_CHUNK", 1)
    np.testing.assert_allclose(coreset().predict(rows, DRAWS), whole, rtol=1e-13)


def test_a_bad_row_is_named_with_its_file(flights, tmp_path):
    one, draws = flights
    for part, origin in enumerate(["JFK", "BOS"]):
        table = pa.table({"temp": [1.0, 2.0], "origin": ["LGA", origin]})
        pq.write_table(table, tmp_path / f"{part}.parquet")
    with pytest.raises(decoct.RowsError, match=r"'origin' has the value 'BOS' in row 3 \(row 1 of"):
        one.predict(tmp_path, draws)


def test_tables_of_one_row_and_of_none(flights, tmp_path):
    one, draws = flights
    table = pd.DataFrame({"temp": [1.0, 2.0], "origin": ["LGA", "JFK"]})
    both, first = one.predict(table, draws), one.predict(table[:1], draws)
    pd.testing.assert_frame_equal(first, both[:1], check_exact=False, rtol=1e-13)
    table[:0].to_parquet(tmp_path / "none.parquet")
    for empty in (table[:0], tmp_path / "none.parquet"):
        with pytest.raises(decoct.RowsError, match="The table is empty"):
            one.predict(empty, draws)


BAD_ROWS = {
    "no such column": ({"temp": [1.0]}, "no column 'origin'"),
    "NaN": ({"temp": [1.0, np.nan], "origin": ["LGA", "JFK"]}, "'temp' has NaN in row 1"),
    "no text": ({"temp": [1.0, 2.0], "origin": ["LGA", None]}, "'origin' has no value in row 1"),
    "new level": (
        {"temp": [1.0], "origin": ["BOS"]},
        "'origin' has the value 'BOS' in row 0, which is not one of the levels",
    ),
    "infinite term": (
        {"temp": [1.0, 0.0], "origin": ["LGA", "LGA"]},
        r"term 'np.log\(temp \*\* 2\)' is -inf in row 1",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_a_sentence(flights, case):
    rows, said = BAD_ROWS[case]
    with pytest.raises(decoct.RowsError, match=said):
        flights[0].predict(rows, flights[1])


BAD_REQUESTS = {
    "kind": ({"kind": "epred"}, "kind must be 'mean' or 'response', not 'epred'"),
    "zero": ({"quantiles": (0.0, 0.5)}, "between 0 and 1"),
    "above": ({"quantiles": (0.5, 1.5)}, "between 0 and 1"),
    "NaN": ({"quantiles": (np.nan,)}, "between 0 and 1"),
    "twice": ({"quantiles": (0.5, 0.5)}, "each once"),
    "a number": ({"quantiles": 0.5}, "between 0 and 1"),
    "words": ({"quantiles": "ab"}, "between 0 and 1"),
    "seed": ({"seed": 0.5}, "seed must be a whole number"),
    "other model": ({"draws": DRAWS[:, :2]}, "this model has 3 unconstrained parameters"),
    "one draw": ({"draws": DRAWS[:1]}, "at least 2 draws"),
    "bad draws": ({"draws": np.full((4, D), np.nan)}, "A draw is NaN or infinite"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_are_a_sentence_before_any_row_is_read(case):
    options, said = BAD_REQUESTS[case]
    with pytest.raises(decoct.RequestError, match=said):
        coreset().predict_chunks({"x": NEW}, **{"draws": DRAWS, **options})


def test_another_number_of_features_is_refused():
    with pytest.raises(decoct.RowsError, match="'x' has 4 numbers per row; the model was fitted"):
        coreset().predict({"x": np.zeros((5, 4))}, DRAWS)


def test_no_quantiles_are_mean_and_sd():
    assert list(coreset().predict({"x": NEW}, DRAWS, quantiles=()).columns) == ["mean", "sd"]


@pytest.mark.parametrize(("kind", "eta"), [("mean", 800.0), ("response", 40.0)])
def test_a_prediction_that_is_not_finite_names_row_and_draw(kind, eta):
    """e^800 is none; e^40 is a rate whose counts float64 does not tell apart."""
    one = kept(PoissonRegression(link="log"), {"x": X, "y": np.arange(len(X)) % 3})
    rows = {"x": np.array([[1.0, 0, 0], [eta, 0, 0]])}
    with pytest.raises(decoct.RowsError, match="The prediction is inf at draw 1 in row 1"):
        one.predict(rows, np.array([[0.01, 0, 0], [1.0, 0, 0]]), kind=kind)


def test_weighted_draws_are_refused_and_resampled_ones_welcome():
    draws = coreset().sample(draws=100, chains=2, sampler=decoct.samplers.Laplace(judge=False))
    check = decoct.check(coreset(), LOGISTIC, draws)
    weighted = check.correct(draws, resample=False)
    with pytest.raises(decoct.RequestError, match=r"give check.correct\(draws\)"):
        coreset().predict({"x": NEW}, weighted)
    corrected = check.correct(draws)
    z = corrected["unconstrained_posterior"]["z"].to_numpy()
    found = coreset().predict({"x": NEW}, corrected)
    np.testing.assert_array_equal(found, coreset().predict({"x": NEW}, z))


GROUPS = 4


def multilevel(**functions):
    """Effects of groups with a scale that no row sees: θ = (effects/τ, log τ), φ = effects."""

    def log_likelihood(phi, rows):
        return -0.5 * (rows["y"] - phi["effect"][rows["group"]]) ** 2

    def log_prior(params):
        return -0.5 * (params["raw"] ** 2).sum() - 0.5 * params["log_tau"] ** 2

    return decoct.Model(
        log_likelihood,
        log_prior,
        {"raw": np.zeros(GROUPS), "log_tau": 0.0},
        likelihood_params=lambda p: {"effect": p["raw"] * jnp.exp(p["log_tau"])},
        **functions,
    )


def expected_of_group(phi, rows):
    return phi["effect"][rows["group"]]


GROUPED = {"group": np.arange(40) % GROUPS, "y": RNG.normal(size=40)}


def test_a_model_of_functions_predicts_from_likelihood_parameters():
    model = multilevel(
        predict=expected_of_group,
        simulate=lambda rng, expected, phi, rows: (
            expected + phi["effect"][:, 0] + rows["group"][:, None]
        ),
    )
    one = kept(model, GROUPED)
    draws = RNG.normal(size=(300, 5))  # log_tau comes first
    effects = draws[:, 1:] * np.exp(draws[:, :1])
    new = {"group": np.array([3, 0, 0]), "other": ["no", "number", "here"]}
    found = one.predict(new, draws)
    np.testing.assert_allclose(found, summary(effects[:, [3, 0, 0]]), rtol=1e-12)
    found = one.predict(new, draws, kind="response")
    shifted = effects[:, [3, 0, 0]] + effects[:, :1] + np.array([3.0, 0.0, 0.0])
    np.testing.assert_allclose(found, summary(shifted), rtol=1e-12)


def proportion(phi, rows):
    return 1.0 / (1.0 + jnp.exp(-phi["effect"][rows["group"]]))


def test_simulate_is_given_rows_of_the_table_alone():
    """A beta response has no expectation of 0."""
    model = multilevel(
        predict=proportion,
        simulate=lambda rng, expected, phi, rows: rng.beta(9 * expected, 9 * (1 - expected)),
    )
    draws = np.tile(np.linspace(0.0, 1.0, 5), (4000, 1))
    found = kept(model, GROUPED).predict({"group": [1]}, draws, kind="response")
    mean = 1.0 / (1.0 + np.exp(-0.5))
    law = stats.beta(9 * mean, 9 * (1 - mean))
    assert abs(found["mean"][0] - mean) < 5.0 * law.std() / np.sqrt(4000)


def test_a_group_that_the_model_does_not_have_is_refused(tmp_path):
    """JAX would answer with its last group, without a word."""
    one = kept(multilevel(predict=expected_of_group), GROUPED)
    new = pd.DataFrame({"group": np.arange(400) % GROUPS})
    new.loc[301, "group"] = GROUPS
    new.to_parquet(tmp_path / "new.parquet")
    for rows in (new, tmp_path):
        with pytest.raises(decoct.RowsError, match="outside an array in row 301"):
            one.predict_chunks(rows, RNG.normal(size=(10, 5)))


def test_floats_for_group_numbers_are_refused():
    one = kept(multilevel(predict=expected_of_group), GROUPED)
    floats = {**GROUPED, "group": GROUPED["group"] + 0.0}
    for refused in (
        lambda: one.predict(floats, RNG.normal(size=(10, 5))),
        lambda: kept(multilevel(), floats),
    ):
        with pytest.raises(decoct.RowsError, match="make group numbers whole"):
            refused()


@pytest.mark.parametrize("columns", [None, ("group", "y")])
def test_a_column_that_predict_asks_for_and_is_not_there(columns):
    def predict(phi, rows):
        return phi["effect"][rows["group"]] + rows["y"]

    one = kept(multilevel(predict=predict, columns=columns), GROUPED)
    draws = RNG.normal(size=(10, 5))
    assert len(one.predict(GROUPED, draws)) == 40
    with pytest.raises(decoct.RowsError, match=r"predict asks for 'y', .* new rows \(group\)"):
        one.predict({"group": GROUPED["group"]}, draws)


@pytest.mark.parametrize(
    ("functions", "kind", "error", "said"),
    [
        ({}, "mean", decoct.RequestError, r"a function predict\(params, rows\)"),
        (
            {"predict": expected_of_group},
            "response",
            decoct.RequestError,
            "cannot simulate new responses",
        ),
        (
            {"predict": lambda phi, rows: phi["effect"][0]},
            "mean",
            decoct.ModelError,
            r"predict returned shape \(\) for 2 rows",
        ),
        (
            {"predict": lambda phi, rows: np.exp(phi["effect"])[0]},
            "mean",
            decoct.ModelError,
            "must be pure JAX: jnp",
        ),
        (
            {"predict": lambda phi, rows: {"mean": phi["effect"]}},
            "mean",
            decoct.ModelError,
            "predict returned a dict",
        ),
        (
            {
                "predict": expected_of_group,
                "simulate": lambda rng, expected, phi, rows: expected[:, 0],
            },
            "response",
            decoct.ModelError,
            "simulate returned shape",
        ),
    ],
    ids=["no predict", "no simulate", "a scalar", "NumPy", "a dict", "one draw"],
)
def test_functions_that_do_not_predict_are_refused(functions, kind, error, said):
    one = kept(multilevel(**functions), GROUPED)
    with pytest.raises(error, match=said):
        one.predict_chunks(GROUPED, RNG.normal(size=(10, 5)), kind=kind)


def test_models_without_a_response_and_bridges_say_who_predicts():
    one = kept(GaussianMean(covariance=np.eye(1)), {"x": X[:, :1]})
    with pytest.raises(decoct.RequestError, match="A GaussianMean does not predict new rows"):
        one.predict({"x": X[:, :1]}, DRAWS[:, :1])
    numpyro = pytest.importorskip("numpyro")

    def model(y):
        mu = numpyro.sample("mu", numpyro.distributions.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", numpyro.distributions.Normal(mu, 1.0), obs=y)

    bridge = decoct.from_numpyro(model, {"y": FEW["y"]}, plate="data")
    one = kept(bridge, bridge.rows)
    with pytest.raises(decoct.RequestError, match=r"give the draws to numpyro.infer.Predictive"):
        one.predict({"y": FEW["y"]}, DRAWS[:, :1])
