"""``python -m decoct`` is the command ``decoct``."""

import sys

from decoct.cli import main

sys.exit(main())
