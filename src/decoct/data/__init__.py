"""Tables of rows: arrays and DataFrames in memory, Parquet and CSV files, Dask clusters."""

from typing import TYPE_CHECKING

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows
from decoct.runtime import lazy_names

if TYPE_CHECKING:
    from decoct.data.arrow import ArrowRows

__all__ = ["ArrayRows", "ArrowRows", "Chunk", "Rows", "encoded", "rows"]

__getattr__, __dir__ = lazy_names(__name__, {"ArrowRows": "arrow"})
