"""Tables as aligned text."""

from collections.abc import Sequence


def text_table(lines: Sequence[Sequence[str]], align: str) -> str:
    """Return lines of cells in columns, aligned by "<" or ">"; a shorter line sets no width."""
    full = [line for line in lines if len(line) == len(align)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    cells = [f"{{:{to}{width}}}" for to, width in zip(align, widths, strict=False)]
    return "\n".join("  ".join(map(str.format, cells, line)) for line in lines)
