"""The main job: ``decoct demo`` on the flights of New York."""
