"""Coresets of tables that arrive piece by piece."""

from decoct.streams.streaming import StreamingCoreset

__all__ = ["StreamingCoreset"]
