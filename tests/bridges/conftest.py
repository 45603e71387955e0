"""The frameworks promote ranks inside; the strict flag of the other tests is not for them."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _ranks_may_be_promoted():
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def wide():
    """PyMC's JAX mode computes in what the flag says."""
    flag = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", flag)
