"""The machine: precision, threads, caches, files, locks, progress."""
