"""What the progress bar shows, and what rows tell it."""

import gzip
import io
import re

import numpy as np
import pytest
import rich.progress  # before Console is replaced
from rich.console import Console

import decoct
from decoct.data.tables import counted_rows, watched
from decoct.runtime import progress


@pytest.fixture
def screen(monkeypatch):
    """A terminal to look at: the last line of the bar as text."""
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    file = io.StringIO()
    monkeypatch.setattr(
        rich.console, "Console", lambda **_: Console(file=file, force_terminal=True, width=100)
    )

    def look(bar):
        bar._progress.refresh()
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
        return re.split(r"[\r\n]+", plain.strip())[-1]

    return look


def test_a_bar_shows_label_share_rate_and_times(screen):
    with progress.ProgressBar(True) as bar:
        bar.begin("round 2 of 4", 1000)
        assert re.fullmatch(r"round 2 of 4 ━+ +working \d:\d\d:\d\d *", screen(bar))
        bar.advance(250)
        bar.advance(250)
        assert re.fullmatch(r"round 2 of 4 ━+[╸╺]?━+ +50% [\d.]+ [kMG]?rows/s \S+ \S+", screen(bar))


def test_rows_that_go_by_again_are_another_pass(screen):
    with progress.ProgressBar(True) as bar:
        progress.begin("preparing", 100)
        for _ in range(2):
            progress.advance(60)
            assert " 60%" in screen(bar)
            progress.advance(40)
            assert "working" in screen(bar)
        assert screen(bar).startswith("preparing, pass 2 ")
        progress.advance(30)
        shown = screen(bar)
        assert shown.startswith("preparing, pass 3 ")
        assert " 30%" in shown
        bar.begin("round 1 of 4", 100)
        bar.advance(1)
        assert screen(bar).startswith("round 1 of 4 ")


def test_short_work_shows_nothing(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 3600.0)
    with progress.ProgressBar(True) as bar:
        bar.begin("round 1 of 1", 10)
        bar.advance(10)
        assert bar._progress is None
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    for show in (False, None):  # None: no terminal here
        with progress.ProgressBar(show) as bar:
            bar.begin("round 1 of 1", 10)
            bar.advance(5)
    assert capsys.readouterr() == ("", "")


class Notes(progress.ProgressBar):
    """A bar that writes down tasks and what was done of each."""

    def __init__(self):
        super().__init__(False)
        self.tasks = []

    def begin(self, label, total, unit="rows"):
        self.tasks.append([label, total, unit, 0.0])
        super().begin(label, total, unit)

    def advance(self, units, unit=None):
        self.tasks[-1][3] += units
        super().advance(units, unit)


@pytest.mark.parametrize("packed", [False, True])
def test_counting_a_csv_file_tells_of_its_bytes(tmp_path, packed):
    text = b"y,w\n" + b"1,word\n" * 400_000
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    size = path.stat().st_size
    table = decoct.rows(path)
    with Notes() as notes:
        assert counted_rows(table) == 400_000
    (note,) = notes.tasks
    assert note[:3] == ["counting rows", size, "B"]
    assert note[3] == pytest.approx(size, rel=0.01)
    with notes:
        assert counted_rows(table) == 400_000
    assert len(notes.tasks) == 1


def test_nothing_is_told_of_tables_that_know_their_rows():
    with Notes() as notes:
        assert counted_rows(decoct.rows({"y": [1, 2]})) == 2
    assert notes.tasks == []


def test_walks_of_watched_rows_are_seen(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("y\n" + "".join(f"{i}\n" for i in range(100)))
    with Notes() as notes:
        table = watched(decoct.rows(path), "learning")
        assert table.columns == ("y",)
        total = table.map_reduce(
            lambda chunk, k: k * chunk.columns["y"].sum(), lambda a, b: a + b, 2, size=30
        )
        assert total == 9900
        assert table.take(np.array([3]))["y"].tolist() == [3]
    counting, whole = notes.tasks
    assert counting[0] == "counting rows"
    assert whole == ["learning", 100, "rows", 100]
    memory = decoct.rows({"y": [1]})
    assert watched(memory, "learning") is memory


def test_a_model_from_a_formula_is_learnt_in_view(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("y,g\n" + "".join(f"{i / 7},{'ab'[i % 2]}\n" for i in range(100)))
    from decoct.models.formula.model import from_formula

    bars = []
    monkeypatch.setattr(
        "decoct.models.formula.model.ProgressBar", lambda _: bars.append(Notes()) or bars[-1]
    )
    from_formula("y ~ C(g)", decoct.rows(path))
    learning = [note for note in bars[0].tasks if note[0] == "learning the formula"]
    assert learning
    assert all(note[3] == note[1] == 100 for note in learning)


def test_merging_and_the_coreset_of_a_stream_say_what_they_are_at(monkeypatch):
    told = []
    usual = progress.ProgressBar.begin

    def begin(bar, label, total, unit="rows"):
        told.append((bar.show, label.partition(",")[0], unit))
        usual(bar, label, total, unit)

    monkeypatch.setattr(progress.ProgressBar, "begin", begin)
    rng = np.random.default_rng(0)
    model, halves = decoct.models.LogisticRegression(), []
    for _ in range(2):
        x = rng.normal(size=(300, 2))
        halves.append({"x": x, "y": (rng.random(300) < 0.5).astype(int)})
    parts = [decoct.build(model, rows, size=10, progress=False) for rows in halves]
    told.clear()
    decoct.merge(parts, size=10, progress=True)
    assert told == [
        (True, "drawing from the parts", "posteriors"),
        (True, "compressing", "rows"),
    ]
    stream = decoct.StreamingCoreset(model, 10, progress=True)
    stream.update(halves[0])
    told.clear()
    assert stream.coreset.size <= 10
    assert told == [(True, "compressing", "rows")]
