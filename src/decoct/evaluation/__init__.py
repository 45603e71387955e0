"""Questions asked after a fit, of all N rows: how well it predicts, how much evidence, how much prior."""
