"""The example of docs/how_it_works.md gives the figures that the page prints."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how_it_works.md"


def test_the_example_prints_what_the_page_says(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(code, PAGE.name, "exec"), {})
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()
