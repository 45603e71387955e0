"""Threads of the products that solvers make."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import decoct
from decoct.constructions import Uniform
from decoct.runtime.resources import LARGE_ARRAYS, few_threads
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit


def threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture
def two_threads():
    with threadpool_limits(limits=2, user_api="blas"):
        yield


@pytest.mark.usefixtures("two_threads")
def test_small_products_have_one_thread_and_give_the_others_back():
    with few_threads(LARGE_ARRAYS - 1):
        assert threads() == {1}
    assert threads() == {2}
    with few_threads(LARGE_ARRAYS):
        assert threads() == {2}
    with pytest.raises(KeyboardInterrupt), few_threads(0):
        raise KeyboardInterrupt
    assert threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_pursuit_and_builds_run_on_one_thread():
    seen = []
    orthogonal_pursuit(np.eye(3), np.ones(3), 2, stop=lambda _: seen.append(threads()))

    class Watched(Uniform):
        def step(self, key, problem, state):
            seen.append(threads())
            return super().step(key, problem, state)

    rows = {"x": np.eye(3), "y": np.array([0, 1, 0])}
    decoct.build(decoct.models.LogisticRegression(), rows, size=2, method=Watched())
    assert seen == [{1}] * len(seen)
    assert len(seen) >= 2
    assert threads() == {2}
