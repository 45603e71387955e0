"""What the models make of raw columns, and which tables they refuse."""

import pickle

import numpy as np
import pytest

from decoct.data.arrays import ArrayRows
from decoct.data.base import Rows
from decoct.errors import ModelError, RowsError
from decoct.models import (
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    StudentTRegression,
)

rng = np.random.default_rng(4)
X = rng.normal(size=(30, 2))
REGRESSIONS = [LinearRegression, LogisticRegression, PoissonRegression, StudentTRegression]
each_regression = pytest.mark.parametrize("regression", REGRESSIONS)


class Watched(ArrayRows):
    """Rows in chunks of three that note each pass."""

    def __init__(self, columns):
        super().__init__(columns)
        self.passes = []

    def map_reduce(self, fn, reduce, *broadcast, size=None, columns=None):
        self.passes.append(columns)
        fn, broadcast = pickle.loads(pickle.dumps((fn, broadcast)))
        return super().map_reduce(fn, reduce, *broadcast, size=3, columns=columns)


def refusal(model, y):
    rows = Watched({"x": np.zeros((len(y), 2)), "y": np.asarray(y)})
    assert isinstance(rows, Rows)
    with pytest.raises(RowsError) as error:
        model.check(rows)
    assert rows.passes == [("y",)]
    return str(error.value)


def encoding_error(model, rows, start=0):
    with pytest.raises(RowsError) as error:
        model.encode(rows, start)
    return str(error.value)


@each_regression
def test_encoding_gives_float64_and_adds_nothing(regression):
    rows = {"x": X.astype(np.float32), "y": np.array([0, 1] * 15), "other": np.array(["a"] * 30)}
    encoded = regression().encode(rows)
    assert set(encoded) == {"x", "y"}
    assert encoded["x"].dtype == encoded["y"].dtype == np.float64
    np.testing.assert_array_equal(encoded["x"], X.astype(np.float32))
    assert regression().columns == ("x", "y")


@each_regression
def test_the_intercept_is_the_last_coefficient(regression):
    rows = {"x": X, "y": np.array([0, 1] * 15)}
    model = regression(intercept=True)
    encoded = model.encode(rows)
    np.testing.assert_array_equal(encoded["x"], np.hstack([X, np.ones((30, 1))]))
    assert model.init(encoded)["beta"].shape == (3,)
    dimension, labels = model.coords(rows)["beta"]
    assert (dimension, labels) == ("coefficient", ["x[0]", "x[1]", "intercept"])


def test_one_feature_may_be_a_vector():
    y = np.array([0, 1, 1])
    np.testing.assert_array_equal(
        LogisticRegression().encode({"x": np.array([1, 2, 3]), "y": y})["x"], [[1], [2], [3]]
    )
    only = LogisticRegression(intercept=True).encode({"x": np.empty((3, 0)), "y": y})
    np.testing.assert_array_equal(only["x"], np.ones((3, 1)))


def test_both_codings_of_labels_are_one():
    expected = [-1.0, 1.0, 1.0]
    for y in ([0, 1, 1], [-1, 1, 1], [False, True, True], [0.0, 1.0, 1.0]):
        encoded = LogisticRegression().encode({"x": X[:3], "y": np.array(y)})
        np.testing.assert_array_equal(encoded["y"], expected)


@pytest.mark.parametrize(
    "model", [*(r(intercept=True) for r in REGRESSIONS), GaussianMean(np.eye(2))]
)
def test_pieces_encode_to_the_pieces_of_the_whole(model):
    rows = {"x": X, "y": rng.integers(0, 2, size=30)}
    whole = model.encode(rows)
    pieces = [
        model.encode({name: values[at : at + 7] for name, values in rows.items()}, at)
        for at in range(0, 30, 7)
    ]
    for name, values in whole.items():
        np.testing.assert_array_equal(values, np.concatenate([piece[name] for piece in pieces]))


@each_regression
def test_bad_values_are_named_by_column_and_global_row(regression):
    y = np.array([0.0, 1.0] * 15)
    x = X.copy()
    x[12, 1] = np.nan
    assert "'x' has NaN in row 112" in encoding_error(regression(), {"x": x, "y": y}, 100)
    numbers = np.arange(30)[::-1]
    assert "'x' has NaN in row 17" in encoding_error(regression(), {"x": x, "y": y}, numbers)
    y[5] = -np.inf
    assert "'y' has an infinite value in row 105" in encoding_error(
        regression(), {"x": X, "y": y}, 100
    )
    y[5] = np.nan
    assert "'y' has NaN in row 24" in encoding_error(regression(), {"x": X, "y": y}, numbers)


@each_regression
def test_bad_columns_are_named(regression):
    y = np.array([0.0, 1.0] * 15)
    model = regression()
    assert "no column 'x'; its columns are: y" in encoding_error(model, {"y": y})
    assert "no column 'y'; its columns are: x" in encoding_error(model, {"x": X})
    text = np.array(["no", "yes"] * 15, dtype=object)
    assert "'y' is not numeric" in encoding_error(model, {"x": X, "y": text})
    assert "'x' is not numeric" in encoding_error(model, {"x": text, "y": y})
    assert "'y' has the shape (30, 1)" in encoding_error(model, {"x": X, "y": y[:, None]})
    assert "'x' has 3 dimensions" in encoding_error(model, {"x": X[..., None], "y": y})
    assert "'x' has no features" in encoding_error(model, {"x": X[:, :0], "y": y})


def test_impossible_responses_are_named_by_row():
    rows = {"x": X[:4], "y": np.array([0, 1, 2, 3])}
    assert "label 2 in row 12" in encoding_error(LogisticRegression(), rows, 10)
    rows["y"] = np.array([0.0, 3.0, 1.5, -1.0])
    assert "'y' is 1.5 in row 12" in encoding_error(PoissonRegression(), rows, 10)
    rows["y"] = np.array([0, 3, 1, -1])
    assert "'y' is -1 in row 13" in encoding_error(PoissonRegression(), rows, 10)


@each_regression
def test_a_constant_response_is_refused(regression):
    assert "the same value 1 in every row" in refusal(regression(), np.ones(8))


def test_labels_must_be_two_valued():
    message = refusal(LogisticRegression(), [0, 1, -1, 0, 1, 0, 1])
    assert "the labels -1, 0, 1" in message
    assert "the labels -1, 0;" in refusal(LogisticRegression(), [0, 0, 0, 0, -1, 0])
    assert "the label 2 in row 7" in refusal(LogisticRegression(), [0, 1] * 3 + [0, 2, 3])


def test_counts_must_be_counts():
    assert "'y' is -2 in row 5" in refusal(PoissonRegression(), [0, 1, 2, 3, 4, -2, 0, -7])
    assert "'y' is 0.25 in row 4" in refusal(PoissonRegression(), [0, 1, 2, 3, 0.25, -2, 0, -7])


@each_regression
def test_the_first_bad_row_of_the_table_is_named(regression):
    y = np.array([0.0, 1.0] * 5)
    y[[7, 9]] = np.nan
    assert "'y' has NaN in row 7" in refusal(regression(), y)
    assert "'y' is not numeric" in refusal(regression(), np.array(["a", "b"], dtype=object))


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LogisticRegression(), [0, 0, 0, 0, 0, 1]),
        (LogisticRegression(), [1, 1, 1, -1]),
        (LogisticRegression(), [True, False]),
        (PoissonRegression(), [0, 0, 0, 1, 500, 7, 8, 9, 10]),
        (LinearRegression(), [1.0, 1.0, 1.0, 1.0 + 1e-12]),
        (StudentTRegression(), [-1e300, 1e300]),
    ],
)
def test_good_responses_pass(model, y):
    rows = Watched({"x": np.full((len(y), 2), np.nan), "y": np.array(y)})
    model.check(rows)
    assert rows.passes == [("y",)]


def test_the_response_may_have_another_name():
    rows = Watched({"late": np.ones(4)})
    with pytest.raises(RowsError, match="'late' is the same value 1"):
        LogisticRegression().check(rows, "late")
    with pytest.raises(RowsError, match="'late' has the label 4 in row 1"):
        LogisticRegression().encode_response({"late": np.array([1, 4])}, name="late")


def test_labels_of_the_coefficients():
    raw = {"x": np.ones((1, 2)), "y": np.ones(1)}
    assert LinearRegression().coords(raw) == {"beta": ("coefficient", ["x[0]", "x[1]"])}
    one = LinearRegression(intercept=True).coords({"x": np.ones(5)})
    assert one == {"beta": ("coefficient", ["x[0]", "intercept"])}
    model = StudentTRegression(scale="log-linear", intercept=True)
    labels = ("coefficient", ["x[0]", "x[1]", "intercept"])
    assert model.coords(raw) == {"beta": labels, "gamma": labels}
    assert StudentTRegression(intercept=True).coords(raw) == {"beta": labels}
    assert GaussianMean(np.eye(2)).coords({}) == {"mean": ("component", ["x[0]", "x[1]"])}


@each_regression
def test_scales_must_fit(regression):
    for scale in (0.0, -1.0, np.nan, np.inf, "wide", None, [1.0, -1.0], [], [[1.0]]):
        with pytest.raises(ModelError, match="prior_scale must be a positive finite number"):
            regression(prior_scale=scale)
    with pytest.raises(ModelError, match="prior_scale must be at least 1e-150"):
        regression(prior_scale=1e-160)
    with pytest.raises(ModelError, match="intercept must be True or False, not 1"):
        regression(intercept=1)
    model = regression(prior_scale=[1.0, 2.0], intercept=True)
    encoded = model.encode({"x": X, "y": np.array([0, 1] * 15)})
    with pytest.raises(ModelError, match="2 entries, but the model has 3 coefficients"):
        model.init(encoded)


def test_other_hyper_parameters_must_make_sense():
    for nu in (0.0, -3.0, np.nan, [4.0]):
        with pytest.raises(ModelError, match="nu must be a positive finite number"):
            StudentTRegression(nu=nu)
    for noise in (0.0, -1.0, [1.0]):
        with pytest.raises(ModelError, match="noise_scale must be a positive finite number"):
            LinearRegression(noise_scale=noise)
    with pytest.raises(ModelError, match="link 'logit' is unknown; use 'softplus' or 'log'"):
        PoissonRegression(link="logit")
    with pytest.raises(ModelError, match="scale 'linear' is unknown; use 'constant'"):
        StudentTRegression(scale="linear")


def test_covariances_must_be_positive_definite():
    with pytest.raises(ModelError, match="covariance is not positive definite"):
        GaussianMean([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ModelError, match="covariance is not positive definite"):
        GaussianMean(-1.0)
    with pytest.raises(ModelError, match="covariance is not symmetric"):
        GaussianMean([[1.0, 0.5], [0.4, 1.0]])
    with pytest.raises(ModelError, match=r"covariance has the shape \(2,\); it must be \(2, 2\)"):
        GaussianMean([1.0, 2.0])
    with pytest.raises(ModelError, match=r"prior_covariance has the shape \(3, 3\)"):
        GaussianMean(np.eye(2), prior_covariance=np.eye(3))
    with pytest.raises(ModelError, match=r"prior_mean has the shape \(3,\)"):
        GaussianMean(np.eye(2), prior_mean=np.zeros(3))
    with pytest.raises(ModelError, match="prior_mean has a value that is not finite"):
        GaussianMean(np.eye(2), prior_mean=[0.0, np.nan])


def test_gaussian_rows():
    model = GaussianMean(np.eye(2))
    assert model.columns == ("x",)
    assert "2 numbers per row" in encoding_error(model, {"x": np.zeros((5, 3))})
    assert "2 numbers per row" in encoding_error(model, {"x": np.zeros(5)})
    bad = {"x": np.array([[0.0, 1.0], [0.0, np.nan]])}
    assert "'x' has NaN in row 8" in encoding_error(model, bad, 7)


def test_the_users_arrays_are_not_shared():
    scale, covariance = np.array([1.0, 2.0]), np.eye(2)
    linear, gaussian = LinearRegression(prior_scale=scale), GaussianMean(covariance)
    scale[0] = covariance[0, 0] = -5.0
    assert linear.prior_scale[0] == gaussian.covariance[0, 0] == 1.0
