"""Saving and loading: round trips, readability, damage, atomicity."""

import base64
import json
import zlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import decoct
from decoct import models
from decoct.constructions import IteratedHilbert, Uniform
from decoct.errors import CoresetFileError, ModelError, RequestError
from decoct.formats import coreset_file
from decoct.formats.site import site_from_dict, site_to_dict
from decoct.models.formula.model import from_formula
from decoct.models.site import GaussianSite, ThirdOrder


def table(n=300):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return {"x": x, "y": x @ [1.0, -1.0] + rng.normal(size=n)}


def binary():
    return {**table(), "y": (table()["y"] > 0).astype(np.int8)}


def counts():
    return {"x": table()["x"][:, 0].astype(np.float32), "y": np.arange(300) % 4}


def flights():
    rng = np.random.default_rng(1)
    return {
        "late": np.arange(300) % 2 == 0,
        "temp": rng.normal(size=300),
        "origin": np.array(["JFK", "LGA", "EWR"], dtype=object)[np.arange(300) % 3],
    }


CASES = {
    "gaussian": (models.GaussianMean(np.eye(2)), lambda: {"x": table()["x"]}),
    "linear": (models.LinearRegression(noise_scale=1.0, intercept=True), table),
    "logistic": (models.LogisticRegression(prior_scale=2.5), binary),
    "poisson": (models.PoissonRegression(link="log"), counts),
    "student": (models.StudentTRegression(scale="log-linear"), table),
}


def build(name):
    if name == "formula":
        rows = decoct.rows(flights())
        return decoct.build(
            from_formula("late ~ temp + C(origin)", rows, "bernoulli"), rows, size=9
        )
    model, rows = CASES[name]
    return decoct.build(model, rows(), size=9)


@pytest.mark.parametrize("name", [*CASES, "formula"])
def test_a_round_trip_changes_nothing(name, tmp_path):
    coreset, path = build(name), tmp_path / "one.parquet"
    coreset.save(path)
    loaded = decoct.load(path)
    np.testing.assert_array_equal(loaded.indices, coreset.indices)
    np.testing.assert_array_equal(loaded.weights, coreset.weights)
    for column, values in coreset.rows.items():
        np.testing.assert_array_equal(loaded.rows[column], values)
        assert loaded.rows[column].dtype == values.dtype
    z = 0.1 * np.ones(coreset.dim)
    assert float(loaded.log_density(z)) == float(coreset.log_density(z))
    assert loaded.report.to_dict() == json.loads(
        json.dumps(coreset.report.to_dict(), default=coreset_file._plain)
    )
    assert loaded.n_rows == 300
    frame = pd.read_parquet(path)
    assert frame["_row"].tolist() == coreset.indices.tolist()
    assert frame["_weight"].tolist() == coreset.weights.tolist()


def custom(scale=1.0, prior=0.5, mu=0.0):
    return decoct.Model(
        lambda p, r: -0.5 * ((r["y"] - p["mu"].sum()) / scale) ** 2,
        lambda p: -prior * (p["mu"] ** 2).sum(),
        {"mu": mu},
    )


def test_a_model_of_ones_own_has_to_be_given_again(tmp_path):
    coreset, path = decoct.build(custom(), {"y": table()["y"]}, size=4), tmp_path / "one.parquet"
    coreset.save(path)
    with pytest.raises(CoresetFileError, match="model="):
        decoct.load(path)
    loaded = decoct.load(path, model=custom())
    assert float(loaded.log_density(np.ones(1))) == float(coreset.log_density(np.ones(1)))


@pytest.mark.parametrize("size", [0, 4])
def test_another_likelihood_is_refused_and_another_prior_is_not(size, tmp_path):
    path = tmp_path / "one.parquet"
    method = IteratedHilbert(site=size == 0)
    decoct.build(custom(), {"y": table()["y"]}, size=size, method=method).save(path)
    with pytest.raises(CoresetFileError, match=r"likelihood is not the one .* is -.*, not -"):
        decoct.load(path, model=custom(scale=1.001))
    with pytest.raises(CoresetFileError, match="has 2 parameters, not 1"):
        decoct.load(path, model=custom(mu=np.zeros(2)))
    reads_more = decoct.Model(lambda p, r: -((r["x"] - p["mu"]) ** 2), lambda p: 0.0, {"mu": 0.0})
    with pytest.raises(CoresetFileError, match=r"cannot be evaluated .* asks for 'x'"):
        decoct.load(path, model=reads_more)
    other = decoct.load(path, model=custom(prior=3.0, mu=0.7))
    with jax.enable_x64(True):
        assert float(other.model.log_prior({"mu": jnp.ones(1)})) == -3.0


def test_another_family_is_refused_and_another_prior_is_not(tmp_path):
    path = tmp_path / "one.parquet"
    build("logistic").save(path)
    assert (
        decoct.load(path, model=models.LogisticRegression(prior_scale=3.0)).model.prior_scale == 3.0
    )
    with pytest.raises(CoresetFileError, match=r"poisson_regression.*, not .*logistic_regression"):
        decoct.load(path, model=models.PoissonRegression())


@pytest.fixture
def saved(tmp_path):
    build("logistic").save(tmp_path / "one.parquet")
    return tmp_path / "one.parquet"


def rewritten(path, change):
    """Write the file again with changed metadata or columns."""
    file = pq.read_table(path)
    description = json.loads(pq.read_metadata(path).metadata[b"decoct"])
    file = change(file, description) or file
    pq.write_table(
        file.replace_schema_metadata({b"decoct": json.dumps(description).encode()}), path
    )


def test_damaged_and_foreign_files_are_sentences(saved, tmp_path):
    whole = saved.read_bytes()
    with pytest.raises(CoresetFileError, match="no file"):
        decoct.load(tmp_path / "none.parquet")
    saved.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CoresetFileError, match="not a readable Parquet"):
        decoct.load(saved)
    pd.DataFrame({"a": [1]}).to_parquet(saved)
    with pytest.raises(CoresetFileError, match="not a coreset"):
        decoct.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, d: d.update(format=99), "use the decoct that saved it"),
        (lambda t, d: d.pop("n_rows") and None, "damaged"),
        (lambda t, d: d["model"].update(kind="horseshoe"), "unknown kind"),
        (lambda t, d: d.update(n_rows=3), "damaged"),
        (
            lambda t, d: t.set_column(
                t.schema.get_field_index("_weight"), "_weight", [[-1.0] * t.num_rows]
            ),
            "damaged",
        ),
    ],
)
def test_edited_files_are_refused(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(CoresetFileError, match=message):
        decoct.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: {**d, "format": None},
        lambda d: {k: v for k, v in d.items() if k != "model"},
        lambda d: {**d, "model": None},
        lambda d: {**d, "model": {**d["model"], "prior_scale": "wide"}},
        lambda d: {**d, "shapes": None},
        lambda d: {**d, "shapes": {**d["shapes"], "x": [3]}},
        lambda d: {**d, "stored": None},
        lambda d: {**d, "dtypes": {**d["dtypes"], "y": "nonsense"}},
        lambda d: {**d, "n_rows": float("inf")},
        lambda d: {**d, "report": []},
        lambda d: [d],
    ],
)
def test_any_damaged_metadata_is_one_error(saved, change):
    file = pq.read_table(saved)
    found = pq.read_metadata(saved).metadata[b"decoct"]
    text = json.dumps(change(json.loads(found))).encode()
    pq.write_table(file.replace_schema_metadata({b"decoct": text}), saved)
    with pytest.raises(CoresetFileError, match=r"damaged|cannot be used|has format None"):
        decoct.load(saved)


def test_deeply_nested_metadata_is_an_error(saved):
    nested = b"[" * 100_000 + b"]" * 100_000
    pq.write_table(pq.read_table(saved).replace_schema_metadata({b"decoct": nested}), saved)
    with pytest.raises(CoresetFileError, match="damaged"):
        decoct.load(saved)


@pytest.mark.parametrize(
    ("column", "values"), [("_row", [0.5] * 9), ("_row", ["0"] * 9), ("_weight", ["1"] * 9)]
)
def test_numbers_of_another_type_are_refused(saved, column, values):
    def change(table, _):
        values_of = values[: table.num_rows]
        return table.set_column(table.schema.get_field_index(column), column, [values_of])

    rewritten(saved, change)
    with pytest.raises(CoresetFileError, match="damaged"):
        decoct.load(saved)


def test_a_file_too_large_for_a_coreset_is_not_read(saved, monkeypatch):
    monkeypatch.setattr(coreset_file, "MOST_ROWS", 5)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda self: pytest.fail("read"))
    with pytest.raises(CoresetFileError, match="more than a coreset"):
        decoct.load(saved)


def test_what_is_no_path_is_refused(saved):
    with pytest.raises(RequestError, match="must be a path"):
        decoct.load(None)
    with pytest.raises(RequestError, match="must be a path"):
        decoct.load(saved).save(None)


def test_rows_and_weights_are_read_only(saved):
    for coreset in (build("logistic"), decoct.load(saved)):
        for column in (coreset.indices, coreset.weights):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 1


def test_a_failed_write_leaves_the_old_file_and_no_rest(saved, monkeypatch):
    before = saved.read_bytes()

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_disk)
    with pytest.raises(RequestError, match=r"one\.parquet could not be written \(No space"):
        decoct.load(saved).save(saved)
    assert saved.read_bytes() == before
    assert [one.name for one in saved.parent.iterdir()] == ["one.parquet"]


@pytest.mark.parametrize("column", ["y", "_row", "_weight"])
def test_a_column_edited_by_another_program_is_refused(saved, column):
    table = pq.read_table(saved)
    values = table[column].to_numpy() + 1
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, table.field(column), [values]), saved)
    with pytest.raises(CoresetFileError, match="not as it was saved"):
        decoct.load(saved)


def test_a_folder_of_hive_partitions_adds_nothing(saved):
    folder = saved.parent / "y=3"
    folder.mkdir()
    saved.rename(folder / "one.parquet")
    assert set(decoct.load(folder / "one.parquet").rows) == {"x", "y"}


def test_strings_of_numpy_are_strings(tmp_path):
    rows = flights()
    rows["origin"] = np.array([np.str_(word) for word in rows["origin"]] + [None], dtype=object)
    rows["origin"] = rows["origin"][:-1]
    model = from_formula("late ~ temp + C(origin)", decoct.rows(rows), "bernoulli")
    decoct.build(model, rows, size=9).save(tmp_path / "one.parquet")
    assert set(decoct.load(tmp_path / "one.parquet").rows["origin"]) <= {"JFK", "LGA", "EWR"}


def test_paths_that_cannot_be_written(saved):
    coreset = decoct.load(saved)
    with pytest.raises(RequestError, match="no folder"):
        coreset.save(saved.parent / "none" / "one.parquet")
    with pytest.raises(RequestError, match="is a folder"):
        coreset.save(saved.parent)


def test_columns_by_the_names_that_the_file_has_of_its_own(tmp_path):
    """As of a coreset's file that is taken for a table."""
    rng = np.random.default_rng(3)
    names = ("y", "_row", "_weight", "_row_")
    rows = {name: rng.normal(size=200) for name in names}
    model = decoct.Model(
        lambda p, rows: -0.5 * (rows["_weight"] - p["mu"]) ** 2 + 0.1 * rows["_row"] * p["mu"],
        lambda p: -0.5 * p["mu"] ** 2,
        {"mu": 0.0},
    )
    coreset = decoct.build(model, rows, size=5)
    coreset.save(tmp_path / "c.parquet")
    loaded = decoct.load(tmp_path / "c.parquet", model=model)
    assert tuple(loaded.rows) == names
    for name in names:
        np.testing.assert_array_equal(loaded.rows[name], rows[name][coreset.indices])
    np.testing.assert_array_equal(loaded.weights, coreset.weights)
    np.testing.assert_array_equal(loaded.indices, coreset.indices)
    assert decoct.check(loaded, rows).kl == decoct.check(coreset, rows).kl


def with_site():
    """A coreset of no rows, with a site of numbers that no short decimal has."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 2))
    rows = {"x": x, "y": (rng.random(300) < 0.4).astype(int)}
    built = decoct.build(models.LogisticRegression(), rows, size=10, method=Uniform())
    half = rng.normal(size=(2, 2)) / 3.0
    site = GaussianSite(rng.normal(size=2), rng.normal(size=2), half @ half.T, 1.0 / 3.0)
    none = {name: column[:0] for name, column in built.rows.items()}
    nothing = np.zeros(0, np.int64)
    return decoct.Coreset(nothing, np.zeros(0), none, 300, built.model, built.report, site), built


def test_a_site_comes_back_to_the_last_bit(tmp_path):
    coreset, _ = with_site()
    coreset.save(tmp_path / "site.parquet")
    loaded = decoct.load(tmp_path / "site.parquet")
    assert loaded.size == 0
    for name in ("centre", "linear", "precision", "constant"):
        np.testing.assert_array_equal(getattr(loaded.site, name), getattr(coreset.site, name))


def test_samplers_of_rows_alone_start_where_these_were_chosen(tmp_path):
    """Rows of long tails have a mode each; a build knows which is that of all rows."""
    cauchy = decoct.Model(
        lambda p, r: -jnp.log1p((r["y"] - p["mu"]) ** 2), lambda p: 0.0, {"mu": 0.0}
    )
    rows = {"y": 20.0 + np.random.default_rng(0).standard_cauchy(300)}
    built = decoct.build(cauchy, rows, size=3, method=IteratedHilbert(site=False))
    assert built.start == pytest.approx([20.0], abs=1.0)
    two = {"weights": np.full(2, 50.0), "rows": {"y": np.array([0.0, 20.0])}}
    two = replace(built, indices=np.arange(2), **two)
    two.save(tmp_path / "two.parquet")
    for coreset in (two, decoct.load(tmp_path / "two.parquet", model=cauchy)):
        assert coreset.laplace().mean == pytest.approx([20.0], abs=0.1)
    assert replace(two, start=None).laplace().mean == pytest.approx([0.0], abs=0.1)
    with pytest.raises(ModelError, match="start has 2 parameters and the model has 1"):
        replace(two, start=np.zeros(2)).laplace()


def test_the_description_is_stored_once(saved):
    """Arrow writes a schema's metadata a second time, encoded."""
    assert b"decoct" in pq.read_metadata(saved).metadata
    assert b"decoct" not in pq.read_schema(saved).metadata


def test_only_files_with_a_site_have_the_format_that_older_versions_refuse(tmp_path):
    formats = []
    for coreset in with_site():
        coreset.save(tmp_path / "one.parquet")
        metadata = pq.read_metadata(tmp_path / "one.parquet").metadata[b"decoct"]
        formats.append(json.loads(metadata)["format"])
    assert formats == [3, 1]


def test_a_site_of_effects_takes_little_space():
    """Effects of different groups have no precision between them."""
    site = GaussianSite(np.zeros(300), np.ones(300), np.diag(np.arange(300.0)), 0.0)
    assert len(site_to_dict(site)["precision"]) < 0.05 * site.precision.nbytes
    np.testing.assert_array_equal(site_from_dict(site_to_dict(site)).precision, site.precision)


def encoded(*numbers):
    return base64.b64encode(np.array(numbers, "<f8")).decode()


THIRD_ORDER = {"effects": encoded(1.0), "scales": encoded(0.5), "sizes": encoded(0.1)}


def test_terms_of_third_order_have_a_format_of_their_own(tmp_path):
    coreset, _ = with_site()
    third = ThirdOrder(np.array([1]), np.array([0.5]), np.array([0.1]))
    replace(coreset, site=replace(coreset.site, third_order=third)).save(tmp_path / "one.parquet")
    metadata = json.loads(pq.read_metadata(tmp_path / "one.parquet").metadata[b"decoct"])
    assert metadata["format"] == 4
    assert metadata["site"] == {**site_to_dict(coreset.site), **THIRD_ORDER}
    found = decoct.load(tmp_path / "one.parquet").site.third_order
    assert [found.effects, found.scales, found.sizes] == [[1], [0.5], [0.1]]
    assert found.partners is None
    pair = replace(third, partners=np.array([0]), factors=np.array([-0.7]))
    replace(coreset, site=replace(coreset.site, third_order=pair)).save(tmp_path / "two.parquet")
    found = decoct.load(tmp_path / "two.parquet").site.third_order
    assert [found.partners, found.factors] == [[0], [-0.7]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"centre": "AAAA"}, "damaged"),
        ({**THIRD_ORDER, "effects": encoded(2.0)}, "no Gaussian has"),
        ({**THIRD_ORDER, "scales": encoded(0.0)}, "no Gaussian has"),
        ({**THIRD_ORDER, "sizes": encoded(np.nan)}, "no Gaussian has"),
        ({**THIRD_ORDER, "sizes": encoded(0.1, 0.1)}, "no Gaussian has"),
        ({**THIRD_ORDER, "partners": encoded(-1.0), "factors": encoded(1.0)}, "no Gaussian has"),
        ({"centre": "no base64"}, "damaged"),
        ({"linear": ""}, "no Gaussian has"),
        ({"precision": base64.b64encode(zlib.compress(-np.eye(2))).decode()}, "no Gaussian has"),
        ({"linear": base64.b64encode(np.full(2, np.nan)).decode()}, "numbers that no Gaussian has"),
    ],
)
def test_a_damaged_site_is_refused(tmp_path, change, message):
    path = tmp_path / "site.parquet"
    with_site()[0].save(path)
    rewritten(path, lambda t, d: d["site"].update(change))
    with pytest.raises(CoresetFileError, match=message):
        decoct.load(path)
