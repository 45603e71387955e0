"""The papers' experiments, regenerated: one folder a paper, one command a figure."""
