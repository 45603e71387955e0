"""Where rows live: arrays and DataFrames in memory, Parquet and CSV files on disk."""

from decoct.data.arrays import ArrayRows
from decoct.data.arrow import ArrowRows
from decoct.data.base import Chunk, Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows

__all__ = ["ArrayRows", "ArrowRows", "Chunk", "Rows", "encoded", "rows"]
