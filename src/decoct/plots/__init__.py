"""Pictures of coresets; they need matplotlib (``pip install decoct[plots]``), this import does not.

Every function returns a matplotlib ``Figure``: ``figure.savefig(path)``, or, after ``%matplotlib
inline``, the last line of a notebook's cell.
"""

from decoct.plots.interval_rows import intervals
from decoct.plots.kept import kept_rows
from decoct.plots.kl_curve import kl_against_size
from decoct.plots.page import report_page
from decoct.plots.weights import kept_weights

__all__ = ["intervals", "kept_rows", "kept_weights", "kl_against_size", "report_page"]
