"""Where decoct stands: peers and decoct on the same posteriors, in one table."""
