"""A frozen design against formulaic on the full table, and against numpy by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formulaic import Formula

from decoct.data import ArrayRows, Rows, rows
from decoct.errors import CoresetFileError, DecoctError, ModelError, RequestError, RowsError
from decoct.formats.coreset_file import naming_damage
from decoct.models.formula.design_matrix import Design
from decoct.models.formula.fit import fit_design
from decoct.models.formula.model import FormulaModel, from_formula

N = 4000


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    temp = rng.normal(12.0, 9.0, N)
    group = rng.choice(["b", "a", "d"], N).astype(object)
    group[1234] = "rare"
    return pd.DataFrame(
        {
            "y": rng.normal(size=N),
            "late": rng.integers(0, 2, N),
            "was_late": rng.random(N) < 0.3,
            "count": rng.poisson(2.0, N),
            "price": rng.lognormal(size=N),
            "temp": temp,
            "wind speed": rng.gamma(2.0, 3.0, N),
            "far": rng.normal(1e6, 1e-1, N),
            "flag": rng.random(N) < 0.5,
            "month": rng.integers(1, 13, N),
            "small": rng.integers(-100, 100, N).astype(np.int8),
            "origin": group,
            "other": rng.choice(["x", "z"], N).astype(object),
            "one": np.ones(N),
        }
    )


@pytest.fixture(scope="module")
def in_memory(table: pd.DataFrame) -> ArrayRows:
    return ArrayRows.from_table(table)


@pytest.fixture(scope="module")
def streamed(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    folder = tmp_path_factory.mktemp("table")
    for part, begin in enumerate(range(0, N, 700)):
        piece = table.iloc[begin : begin + 700]
        piece.to_parquet(folder / f"part-{part}.parquet", row_group_size=150)
    return rows(folder)


def everything(source: Rows) -> dict[str, np.ndarray]:
    return source.take(np.arange(source.n_rows))


def by_formulaic(formula: str, table: pd.DataFrame) -> Any:
    return Formula(formula).get_model_matrix(table, output="numpy", na_action="raise")


STREAMABLE = [
    "y ~ temp + month",
    "late ~ temp + `wind speed` + C(origin) + C(month)",
    "y ~ origin",
    "y ~ 0 + temp",
    "y ~ 0 + C(origin) + temp",
    "y ~ temp * `wind speed`",
    "y ~ temp * C(origin)",
    "y ~ C(origin):C(other)",
    "y ~ 0 + C(origin):temp + C(other)*C(flag)",
    "y ~ C(other):C(origin):temp + flag + flag:temp",
    "y ~ center(temp) + scale(price) + standardize(temp)",
    "y ~ scale(temp, ddof=0) + scale(price, center=False) + scale(temp, scale=2.0)",
    "y ~ scale(np.log(price), center=1.5) + scale(center(temp) ** 2)",
    "y ~ scale(small) + C(scale(temp) > 1)",
    "np.log(price) ~ np.log(price) + np.sqrt(`wind speed`) + I(temp ** 2) + {temp / price}",
    "log(price) ~ I((origin == 'a') & (temp > 0)) + exp(-price)",
    "I(origin == 'a') ~ temp + one",
    "y ~ C(origin, Treatment('d')) + C(month, contr.sum) + C(other, contr.helmert)",
    "y ~ C(origin, levels=['rare', 'd', 'b', 'a']) + C(np.floor(temp / 20))",
    "y ~ np.where(temp > 0, temp, 0) + np.isin(month, [1, -2]) + np.maximum(temp, price)",
    "y ~ poly(temp, 2, raw=True)",
    "y ~ 2:temp + month:flag",
    "y ~ 1",
    "y ~ bs(price, knots=[1.0, 2.0], lower_bound=0, upper_bound=200)",
]
IN_MEMORY = [
    "y ~ bs(temp, df=5) + poly(price, 3)",
    "y ~ cr(temp, df=4, constraints='center') + bs(price, df=6, include_intercept=True)",
    "y ~ cc(temp, df=4) + C(origin):poly(temp, 2)",
    "y ~ bs(center(temp), df=4)",
]


def test_any_table_will_do(table, in_memory):
    formula = "late ~ temp"
    known = from_formula(formula, in_memory, "bernoulli")
    for given in (table, {name: table[name].to_numpy() for name in ("late", "temp")}):
        assert from_formula(formula, given, "bernoulli").to_dict() == known.to_dict()


@pytest.mark.parametrize("formula", [*STREAMABLE, *IN_MEMORY])
def test_equals_formulaic_on_the_full_table(formula, table, in_memory):
    design = fit_design(formula, in_memory, standardize=False)
    full = design.encode(everything(in_memory))
    oracle = by_formulaic(formula, table)
    assert design.names == tuple(oracle.rhs.model_spec.column_names)
    np.testing.assert_allclose(full["x"], np.asarray(oracle.rhs), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(full["y"], np.asarray(oracle.lhs)[:, 0], rtol=1e-12, atol=1e-12)
    assert full["x"].dtype == full["y"].dtype == np.float64


@pytest.mark.parametrize("formula", STREAMABLE)
def test_streamed_equals_in_memory(formula, in_memory, streamed):
    one, other = fit_design(formula, in_memory), fit_design(formula, streamed)
    assert one.names == other.names
    raw = everything(in_memory)
    np.testing.assert_allclose(one.encode(raw)["x"], other.encode(raw)["x"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("formula", [*STREAMABLE, *IN_MEMORY])
def test_frozen_rows_and_chunks_are_those_of_the_full_table(formula, in_memory):
    design = fit_design(formula, in_memory)
    raw = everything(in_memory)
    full = design.encode(raw)
    pieces = [slice(0, 3), slice(3, 1000), slice(1000, 1001), slice(1001, N)]
    parts = [design.encode({k: v[p] for k, v in raw.items()}, p.start) for p in pieces]
    # formulaic's cubic splines are a matrix product, whose rounding depends on its number of rows
    rounding = 1e-14 if "cr(" in formula or "cc(" in formula else 0.0
    for name in ("x", "y"):
        together = np.concatenate([p[name] for p in parts])
        np.testing.assert_allclose(together, full[name], rtol=0, atol=rounding)
    chosen = np.array([1234, 7, 3999])
    some = design.encode({k: v[chosen] for k, v in raw.items()}, chosen)
    np.testing.assert_allclose(some["x"], full["x"][chosen], rtol=0, atol=rounding)


@pytest.mark.parametrize("formula", [*STREAMABLE, *IN_MEMORY])
def test_json_round_trip_is_bit_identical(formula, in_memory):
    design = fit_design(formula, in_memory)
    again = Design.from_dict(json.loads(json.dumps(design.to_dict(), allow_nan=False)))
    assert again == design
    assert hash(again) == hash(design)
    assert (again.names, again.columns) == (design.names, design.columns)
    raw = everything(in_memory)
    for name in ("x", "y"):
        np.testing.assert_array_equal(again.encode(raw)[name], design.encode(raw)[name])


class TestStandardisation:
    def test_numeric_columns_have_mean_0_and_sd_1(self, in_memory, table):
        design = fit_design("y ~ temp + small + I(temp ** 2) + flag + C(origin)", in_memory)
        x = design.encode(everything(in_memory))["x"]
        names = list(design.names)
        for name in ("temp", "small", "I(temp ** 2)"):
            column = x[:, names.index(name)]
            assert abs(column.mean()) < 1e-12
            assert column.std() == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_array_equal(x[:, names.index("flag")], table["flag"])
        np.testing.assert_array_equal(x[:, 0], 1.0)
        np.testing.assert_array_equal(
            x[:, names.index("C(origin)[T.d]")], table["origin"].to_numpy() == "d"
        )

    def test_moments_are_stable_far_from_zero(self, streamed, table):
        design = fit_design("y ~ far", streamed)
        values = table["far"].to_numpy()
        assert design.shift[1] == pytest.approx(values.mean(), rel=1e-14)
        assert design.scale[1] == pytest.approx((values - values.mean()).std(), rel=1e-9)

    def test_constant_columns_stay(self, in_memory):
        design = fit_design("y ~ one + I(one * 0) + I(one / 3) + temp + scale(one)", in_memory)
        x = design.encode(everything(in_memory))["x"]
        assert x[0, :4].tolist() == [1.0, 1.0, 0.0, 1 / 3]
        assert x[0, 5] == 0.0

    def test_no_shift_without_an_intercept(self, in_memory, table):
        design = fit_design("y ~ 0 + temp", in_memory)
        temp = table["temp"].to_numpy()
        np.testing.assert_allclose(
            design.encode(everything(in_memory))["x"][:, 0], temp / temp.std(), rtol=1e-12
        )

    def test_contrasts_are_left_alone(self, in_memory):
        design = fit_design("y ~ C(origin, contr.sum) + C(month, contr.poly)", in_memory)
        assert (design.scale == 1).all()
        assert (design.shift == 0).all()


class TestLevels:
    def test_a_rare_level_comes_from_the_full_data(self, streamed):
        design = fit_design("y ~ C(origin)", streamed)
        assert design.names == ("Intercept", *(f"C(origin)[T.{k}]" for k in ("b", "d", "rare")))

    def test_integers_sort_as_numbers_and_booleans_have_levels(self, in_memory):
        design = fit_design("y ~ C(month) + C(flag)", in_memory)
        assert design.names[1:12] == tuple(f"C(month)[T.{k}]" for k in range(2, 13))
        assert design.names[12] == "C(flag)[T.True]"

    def test_integer_levels_match_whatever_the_integer_type(self, in_memory):
        design = fit_design("y ~ C(month)", in_memory)
        one = {"y": np.array([0.0]), "month": np.array([12], dtype=np.int16)}
        assert design.encode(one)["x"][0, -1] == 1.0
        one["month"] = np.array([12.0])
        assert design.encode(one)["x"][0, -1] == 1.0

    def test_a_single_level_adds_no_column(self):
        design = fit_design("y ~ C(g) + x", small(g=["a", "a", "a"]))
        assert design.names == ("Intercept", "x")
        assert fit_design("y ~ 0 + C(g)", small(g=["a", "a", "a"])).names == ("C(g)[a]",)

    def test_an_unknown_level_is_named(self, in_memory):
        design = fit_design("y ~ C(origin) + temp", in_memory)
        bad = {
            "y": np.zeros(3),
            "temp": np.zeros(3),
            "origin": np.array(["a", "b", "zz"], dtype=object),
        }
        with pytest.raises(RowsError, match=r"Column 'origin' has the value 'zz' in row 102.*rare"):
            design.encode(bad, 100)
        with pytest.raises(RowsError, match="in row 9,"):
            design.encode(bad, np.array([5, 7, 9]))

    def test_a_level_left_out_of_the_list_is_refused(self, in_memory):
        with pytest.raises(RowsError, match="'rare' in row 1234"):
            fit_design("y ~ C(origin, levels=['a', 'b', 'd']) + temp", in_memory)

    def test_too_many_levels(self):
        wide = ArrayRows({"y": np.zeros(1500), "k": np.arange(1500)})
        with pytest.raises(RowsError, match=r"'C\(k\)' has more than 1000 levels"):
            fit_design("y ~ C(k)", wide)


def small(**columns: Any) -> ArrayRows:
    base = {"y": [0.0, 1.0, 2.0], "x": [1.0, 2.0, 4.0], "g": ["a", "b", "a"]}
    return ArrayRows.from_table(pd.DataFrame({**base, **columns}))


class TestBadRows:
    @pytest.mark.parametrize("standardize", [True, False])
    @pytest.mark.parametrize("formula", ["y ~ x", "y ~ I(x > 0)", "y ~ center(x)", "y ~ C(x)"])
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_missing_number(self, formula, bad, standardize):
        with pytest.raises(RowsError, match=r"'x' has .* row 2"):
            fit_design(formula, small(x=[1.0, 2.0, bad]), standardize)

    @pytest.mark.parametrize("formula", ["y ~ g", "y ~ C(g)", "y ~ I(g == 'a')"])
    def test_missing_text(self, formula):
        with pytest.raises(RowsError, match=r"'g' has no value in row 1"):
            fit_design(formula, small(g=["a", None, "a"]))

    def test_missing_values_far_down_a_stream(self, table, tmp_path):
        bad = table.assign(
            temp=table["temp"].where(table.index != 3210),
            origin=table["origin"].where(table.index != 2222, None),
        )
        bad.to_parquet(tmp_path / "bad.parquet", row_group_size=500)
        source = rows(tmp_path / "bad.parquet")
        with pytest.raises(RowsError, match="'temp' has NaN in row 3210"):
            fit_design("y ~ temp", source)
        with pytest.raises(RowsError, match="'origin' has no value in row 2222"):
            fit_design("y ~ C(origin)", source)

    @pytest.mark.parametrize("function", ["np.log", "scale(np.log", "C(np.log"])
    def test_a_term_that_is_not_finite(self, function):
        term = f"{function}(x)" + ")" * (function.count("(") or 0)
        with pytest.raises(RowsError, match=r"np\.log\(x\).* in row 1"):
            fit_design(f"y ~ {term}", small(x=[1.0, 0.0, 2.0]))

    def test_missing_response(self):
        with pytest.raises(RowsError, match="'y' has NaN in row 0"):
            fit_design("y ~ x", small(y=[np.nan, 1.0, 2.0]))

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            (np.array(["2020-01-01"] * 3, dtype="datetime64[D]"), "datetime64"),
            (np.zeros((3, 2)), "not one value per row"),
            (np.array(["a", 1, 2.5], dtype=object), "kind 'mixed"),
        ],
    )
    def test_unusable_columns(self, values, said):
        source = ArrayRows({"y": np.zeros(3), "x": values})
        with pytest.raises(RowsError, match=said):
            fit_design("y ~ x", source)

    def test_objects_that_are_numbers(self):
        x = np.array([1, 2, 5], dtype=object)
        design = fit_design("y ~ x + C(x)", ArrayRows({"y": np.zeros(3), "x": x}), False)
        assert design.names == ("Intercept", "x", "C(x)[T.2]", "C(x)[T.5]")


class TestBadFormulas:
    @pytest.mark.parametrize(
        ("formula", "error", "said"),
        [
            ("x", ModelError, "response ~ terms"),
            ("~ x", ModelError, "response ~ terms"),
            ("", ModelError, "response ~ terms"),
            ("y ~ x | g", ModelError, "response ~ terms"),
            ("y + x ~ g", ModelError, "one response"),
            ("y:x ~ g", ModelError, "one response"),
            ("1 ~ x", ModelError, "one response"),
            ("y ~", ModelError, "right side"),
            ("y ~ 0", ModelError, "right side"),
            ("y ~ (x", ModelError, "cannot be read"),
            ("y ~ x +* g", ModelError, "cannot be read"),
            ("y ~ nope", RowsError, "'nope'.*columns are: g, x, y"),
            ("nope ~ x", RowsError, "'nope'"),
            ("y ~ foo(x)", ModelError, "foo"),
            ("y ~ lag(x)", ModelError, "lag"),
            ("y ~ np.mean(x)", ModelError, "np.mean"),
            ("y ~ I(x - x.mean())", ModelError, "x.mean"),
            ("y ~ I(x[0])", ModelError, "x.0."),
            ("y ~ np.add(x, x, x)", ModelError, "too many"),
            ("y ~ np.add(x, x, out=x)", ModelError, "too many"),
            ("y ~ np.linalg.norm(x)", ModelError, "norm"),
            ("y ~ I(0 < x < 1)", ModelError, "0 < x < 1"),
            ("y ~ I(x in [1, 2])", ModelError, "x in .1, 2."),
            ("y ~ I(x + [1, 2, 3])", ModelError, "1, 2, 3"),
            ("y ~ I(not x)", ModelError, "not x"),
            ("y ~ np.isin(x, y)", ModelError, "not a constant"),
            ("y ~ np.modf(x)", ModelError, "not one number per row"),
            ("y ~ np.round(x, 1, x)", ModelError, "too many"),
            ("y ~ C(g, contr.mro)", ModelError, "contr.mro"),
            ("y ~ I(3)", ModelError, "names no column"),
            ("y ~ center(x, 3, 4)", ModelError, "center"),
            ("y ~ center(poly(x, 2))", ModelError, "one number per row"),
            ("y ~ scale(x, center=x)", ModelError, "not a constant"),
            ("y ~ C(g, Treatment('nope'))", ModelError, "laid out.*nope"),
            ("y ~ C(g, foo)", ModelError, "foo"),
            ("y ~ I(C(g))", ModelError, "term of its own"),
            ("y ~ np.log(g)", RowsError, "cannot be evaluated"),
            ("y ~ I(g)", RowsError, "is text"),
            ("y ~ bs(x, df=1)", RowsError, "df"),
            ("g ~ x", RowsError, "I\\(g == 'a'\\)"),
            ("C(g) ~ x", RowsError, "is text or a category"),
            ("poly(y, 2) ~ x", ModelError, "more than one number"),
            ("y ~ I(__import__('os').getcwd())", ModelError, "__import__"),
            ("y ~ I((lambda: x)())", ModelError, "lambda"),
            ("y ~ I([k for k in x])", ModelError, "not a function of one row"),
        ],
    )
    def test_one_sentence(self, formula, error, said):
        with pytest.raises(error, match=said) as caught:
            fit_design(formula, small())
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("term", ["bs(temp, df=4)", "poly(temp, 2)", "cr(temp, df=3)"])
    def test_splines_need_the_whole_column(self, term, streamed):
        with pytest.raises(RequestError, match="load it into memory"):
            fit_design(f"y ~ {term}", streamed)

    def test_a_file_cannot_smuggle_code_in(self):
        spec = fit_design("y ~ np.log(x)", small()).to_dict()
        spec["factors"][0]["label"] = "np.log(__import__('os').system('true'))"
        with pytest.raises(ModelError, match="__import__"):
            Design.from_dict(spec)


def test_every_other_column():
    source = ArrayRows({"y": np.arange(3.0), "a": np.arange(3), "b": np.ones(3)})
    assert fit_design("np.exp(y) ~ .", source).names == ("Intercept", "a", "b")


def test_names_of_columns_never_clash_with_functions():
    data = {"y": np.arange(3.0), "scale": np.array([1.0, 2.0, 4.0]), "np": np.ones(3)}
    data |= {"a b": np.array([1.0, 5.0, 2.0]), "a_b": np.array([2.0, 1.0, 1.0])}
    formula = "y ~ scale(scale) + np.log(np) + center(`a b` + a_b + `a b`)"
    x = fit_design(formula, ArrayRows(data), False).encode(data)["x"]
    both = 2 * data["a b"] + data["a_b"]
    np.testing.assert_allclose(x[:, 1], (data["scale"] - 7 / 3) / data["scale"].std(ddof=1))
    np.testing.assert_array_equal(x[:, 2], 0.0)
    np.testing.assert_allclose(x[:, 3], both - both.mean())


def test_integers_do_not_overflow():
    x = np.array([3_000_000, 5, 7], dtype=np.int32)
    design = fit_design("y ~ I(x ** 3)", ArrayRows({"y": np.zeros(3), "x": x}), False)
    assert design.encode({"y": np.zeros(3), "x": x})["x"][0, 1] == 2.7e19


class TestFormulaModel:
    @pytest.fixture(params=["gaussian", "bernoulli", "poisson", "student"])
    def model(self, request, streamed) -> FormulaModel:
        response = {"bernoulli": "was_late", "poisson": "count"}.get(request.param, "y")
        formula = f"{response} ~ temp + C(origin)"
        return from_formula(formula, streamed, request.param, prior_scale=2.0)

    def test_delegates_to_the_base(self, model, streamed):
        model.check(streamed)
        raw = streamed.take(np.arange(20), model.columns)
        encoded = model.encode(raw)
        params = model.init(encoded)
        params["beta"] = np.linspace(-1.0, 1.0, 5)
        with jax.enable_x64(True):
            values = np.asarray(model.log_likelihood(params, encoded))
            np.testing.assert_array_equal(values, model.base.log_likelihood(params, encoded))
            assert values.shape == (20,)
            assert values.dtype == np.float64
            assert model.log_prior(params) == model.base.log_prior(params)
            assert set(model.constrain(params)) == set(model.base.constrain(params))

    def test_coefficients_are_labelled(self, model, streamed):
        labels = ["Intercept", "temp", "C(origin)[T.b]", "C(origin)[T.d]", "C(origin)[T.rare]"]
        raw = streamed.take(np.arange(2), model.columns)
        assert model.coords(raw)["beta"] == ("coefficient", labels)
        assert model.coords(model.encode(raw))["beta"] == ("coefficient", labels)

    def test_json_round_trip(self, model, streamed):
        again = FormulaModel.from_dict(json.loads(json.dumps(model.to_dict())))
        assert again.to_dict() == model.to_dict()
        assert again.design == model.design
        assert type(again.base) is type(model.base)
        raw = streamed.take(np.arange(50), model.columns)
        one, other = model.encode(raw), again.encode(raw)
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["y"], other["y"])

    def test_unscaled_coefficients_predict_the_same(self, streamed, in_memory):
        formula = "y ~ temp * C(origin) + `wind speed`"
        scaled = from_formula(formula, streamed)
        plain = from_formula(formula, streamed, standardize=False)
        raw = everything(in_memory)
        beta = np.random.default_rng(0).normal(size=(2, 3, len(scaled.design.names)))
        np.testing.assert_allclose(
            beta @ scaled.encode(raw)["x"].T,
            scaled.unscaled(beta) @ plain.encode(raw)["x"].T,
            rtol=1e-9,
            atol=1e-9,
        )

    def test_options_reach_the_family(self, streamed):
        assert from_formula("count ~ temp", streamed, "poisson").base.link == "log"
        soft = from_formula("count ~ temp", streamed, "poisson", link="softplus")
        assert soft.base.link == "softplus"
        model = from_formula("y ~ temp", streamed, noise_scale=0.5, prior_scale=[1.0, 3.0])
        assert model.is_conjugate
        assert not from_formula("y ~ temp", streamed, "student").is_conjugate

    def test_exact_posterior_is_that_of_the_base(self, in_memory):
        model = from_formula("y ~ temp", in_memory, noise_scale=1.0)
        table = model.encode(everything(in_memory))
        with jax.enable_x64(True):
            stats = model.sufficient(table, np.ones(N))
            mean, cov = map(np.asarray, model.exact_posterior(stats))
        precision = np.eye(2) + table["x"].T @ table["x"]
        np.testing.assert_allclose(cov, np.linalg.inv(precision), rtol=1e-9, atol=1e-18)
        np.testing.assert_allclose(mean, cov @ (table["x"].T @ table["y"]), rtol=1e-9)

    def test_booleans_are_labels(self, in_memory, table):
        model = from_formula("was_late ~ temp", in_memory, "bernoulli")
        y = model.encode(everything(in_memory))["y"]
        np.testing.assert_array_equal(y > 0, table["was_late"])

    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            ({"family": "gamma"}, RequestError, "gaussian, bernoulli, poisson, student"),
            ({"intercept": True}, ModelError, "intercept"),
            ({"wrong": 1}, ModelError, "wrong"),
            ({"prior_scale": -1.0}, ModelError, "positive"),
            ({"prior_scale": [1.0, 2.0, 3.0]}, ModelError, "3 entries"),
            ({"formula": "nope ~ temp"}, RowsError, "no column 'nope'"),
        ],
    )
    def test_bad_calls(self, call, error, said, in_memory):
        with pytest.raises(error, match=said):
            from_formula(**{"formula": "y ~ temp", "rows": in_memory, **call})

    @pytest.mark.parametrize(
        ("formula", "family", "said"),
        [
            ("count ~ temp", "bernoulli", "'count' has the label 4 in row 0"),
            ("I(count + 0.5) ~ temp", "poisson", r"I\(count \+ 0.5\).* in row 0"),
            ("one ~ temp", "gaussian", "'one' is the same value 1"),
        ],
    )
    def test_the_response_is_checked_under_its_name(self, formula, family, said, streamed):
        model = from_formula(formula, streamed, family)
        with pytest.raises(RowsError, match=said):
            model.check(streamed)

    def test_a_bad_row_of_a_new_table_is_named(self, in_memory):
        model = from_formula("was_late ~ temp", in_memory, "bernoulli")
        bad = {"was_late": np.array([0, 1, 2]), "temp": np.zeros(3)}
        with pytest.raises(RowsError, match="'was_late' has the label 2 in row 12"):
            model.encode(bad, 10)
        with pytest.raises(RowsError, match="no column 'temp'"):
            model.encode({"was_late": np.zeros(3)})

    @pytest.mark.parametrize("lost", ["design", "base"])
    def test_a_mutilated_file(self, lost, in_memory):
        spec = from_formula("y ~ temp", in_memory).to_dict()
        with pytest.raises(CoresetFileError), naming_damage("c"):
            FormulaModel.from_dict({k: v for k, v in spec.items() if k != lost})
        with pytest.raises(CoresetFileError), naming_damage("c"):
            FormulaModel.from_dict({**spec, lost: {"kind": "gaussian_mean"}})


@pytest.mark.filterwarnings("ignore:The formula's term 'C.a.' has 60 levels")
@pytest.mark.filterwarnings("ignore:The formula's term 'C.b.' has 60 levels")
def test_too_wide_a_design():
    data = {"y": np.zeros(60), "a": np.arange(60), "b": np.arange(60)}
    with pytest.raises(ModelError, match="makes 3600 columns"):
        fit_design("y ~ C(a):C(b)", ArrayRows(data))


def test_collinear_and_zero_columns_are_allowed():
    design = fit_design("y ~ x + I(2 * x) + I(0 * x)", small())
    assert np.isfinite(design.encode(everything(small()))["x"]).all()


def numbers_as_text(n=3000, bad=2718, word="oops"):
    rng = np.random.default_rng(0)
    text = np.array([f"{value:.1f}" for value in rng.normal(size=n)], dtype=object)
    text[bad] = word
    return {"a": text, "y": np.arange(n) % 2}


@pytest.mark.parametrize("word", ["oops", "?", "1,234", "0x1f", "1\x002"])
def test_one_bad_cell_makes_no_category(word, tmp_path):
    table = numbers_as_text(word=word)
    pq.write_table(pa.table({k: pa.array(v.tolist()) for k, v in table.items()}), tmp_path / "t.pq")
    message = re.escape(f"the first other value is {word!r} in row 2718")
    for source in (table, pd.DataFrame(table), tmp_path / "t.pq"):
        with pytest.raises(RowsError, match=message):
            from_formula("y ~ a", source, "bernoulli")
    with pytest.warns(UserWarning, match=r"'C\(a\)' has \d\d levels, each of which"):
        model = from_formula("y ~ C(a)", table, "bernoulli")
    assert len(model.design.names) > 50


def test_one_bad_cell_in_a_later_chunk(tmp_path):
    """Before it comes, numbers as text are more levels than a category may have."""
    table = {"a": np.array([f"{i / 7:.3f}" for i in range(4000)], dtype=object)}
    table |= {"y": np.arange(4000) % 2}
    table["a"][3999] = "NA?"
    for size in (100, 4000):
        chunked = rows(table)
        cut = chunked.map_reduce
        chunked.map_reduce = lambda *a, size=size, cut=cut, **k: cut(*a, **{**k, "size": size})
        with pytest.raises(RowsError, match="most of its values are numbers"):
            from_formula("y ~ a", chunked, "bernoulli")


def test_words_and_codes_are_categories():
    table = {"a": np.array(["north", "south", "1"] * 20, dtype=object), "y": np.arange(60.0)}
    assert from_formula("y ~ a", table).design.names == ("Intercept", "a[T.north]", "a[T.south]")
    table["a"] = np.array(["10", "20", "30"] * 20, dtype=object)
    assert from_formula("y ~ a", table).design.names == ("Intercept", "a[T.20]", "a[T.30]")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ I(9**9**9 * a)", "cannot be evaluated"),
        ("y ~ I(a ** (9**9**9))", "cannot be evaluated"),
        ("y ~ (a + b + k)**30", "multiplies out to more than 10,000 terms"),
        ("y ~ (a)**999999999", "multiplies out to more than 10,000 terms"),
        ("y ~ " + "*".join(["(a + b)"] * 30), "multiplies out to more than 10,000 terms"),
        (f"y ~ I({'-' * 150}a)", "nested more than 100 deep"),
        (f"y ~ I({'-' * 100_000}a)", "cannot be read"),
        ("y ~ poly(a, 999999999)", "whole number above 2000"),
    ],
)
def test_no_formula_runs_for_ever(formula, message):
    table = {name: np.arange(1.0, 9.0) for name in ("a", "b", "k", "y")}
    with pytest.raises(DecoctError, match=message) as refused:
        from_formula(formula, table)
    assert len(str(refused.value)) < 1000


def test_no_saved_formula_runs_for_ever(in_memory):
    spec = from_formula("y ~ I(2 * temp)", in_memory).to_dict()
    for label in ("I(9 ** 9 ** 9 * temp)", "-" * 100_000 + "temp", "poly(temp, 999999999)"):
        crafted = json.loads(json.dumps(spec).replace("I(2 * temp)", label))
        with pytest.raises(DecoctError):
            FormulaModel.from_dict(crafted).encode({"temp": np.ones(3), "y": np.ones(3)})


def test_powers_and_sums_that_end_are_taken():
    rng = np.random.default_rng(0)
    table = {name: rng.normal(size=30) for name in ("a", "b", "y")}
    names = from_formula("y ~ (a + b)**2 + I(a ** 2 ** 1)", table).design.names
    assert names == ("Intercept", "a", "b", "I(a ** 2 ** 1)", "a:b")
    wide = {f"x{i}": rng.normal(size=30) for i in range(1200)}
    formula = "y ~ " + " + ".join(wide)
    assert len(from_formula(formula, {**wide, "y": table["y"]}).design.names) == 1201
