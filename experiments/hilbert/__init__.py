"""Campbell & Broderick (2019), Automated scalable Bayesian inference via Hilbert coresets."""
