"""Builds: requests, the driver, checkpoints, costs and comparisons."""
