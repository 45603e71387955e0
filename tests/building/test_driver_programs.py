"""How many programs the main job compiles: every one costs a first run time."""

import logging

import jax
import numpy as np

import decoct


class Programs(logging.Handler):
    """Collects the names of the programs that JAX says it compiled."""

    def __init__(self):
        super().__init__()
        self.names = []

    def emit(self, record):
        if (message := record.getMessage()).startswith("Finished XLA compilation"):
            self.names.append(message)


def test_build_sample_and_check_compile_sixty_programs_at_most():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000, 10))
    rows = {"x": x, "y": rng.random(100_000) < 1.0 / (1.0 + np.exp(-x[:, 0]))}
    logger, programs = logging.getLogger("jax._src.dispatch"), Programs()
    jax.clear_caches()
    logger.addHandler(programs)
    try:
        with jax.log_compiles():
            coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=10)
            decoct.check(coreset, rows, coreset.sample(draws=100))
    finally:
        logger.removeHandler(programs)
    assert 20 < len(programs.names) <= 60, "\n".join(programs.names)
