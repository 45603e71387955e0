"""Passes over the data: potentials, pools, control variates."""
