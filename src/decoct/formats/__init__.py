"""File formats of coresets: Parquet files, and data of Stan programs."""
