"""Campbell & Beronov (2019), Sparse variational inference: Bayesian coresets from scratch."""
