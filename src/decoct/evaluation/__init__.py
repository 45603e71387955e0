"""Questions asked after a fit, of all N rows: how well it predicts, what the data say for it."""
