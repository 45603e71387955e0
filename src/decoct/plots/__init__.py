"""Pictures of coresets; they need matplotlib (``pip install decoct[plots]``), this import does not.

Every function returns a matplotlib ``Figure``: ``figure.savefig(path)``, or, after ``%matplotlib
inline``, the last line of a notebook's cell.
"""

from decoct.plots.forest import intervals
from decoct.plots.kl_curve import comparison, kl_against_size
from decoct.plots.page import report_page
from decoct.plots.rows_and_weights import kept_by_group, kept_rows, kept_weights

__all__ = [
    "comparison",
    "intervals",
    "kept_by_group",
    "kept_rows",
    "kept_weights",
    "kl_against_size",
    "report_page",
]
