"""What coresets are written to: Parquet files, and data of Stan programs."""
