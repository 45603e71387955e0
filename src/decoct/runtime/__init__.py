"""What depends on the machine: precision, threads, caches, files, locks, progress."""
