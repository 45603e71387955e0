"""``python -m decoct`` is the command line."""

from decoct.cli import main

main()
