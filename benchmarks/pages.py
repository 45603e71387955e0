"""Tables of the committed CSV files for the documentation: ``python -m benchmarks.pages``.

Writes ``docs/benchmarks/*.md``, ``docs/compared.md`` with its picture, and the figures of
README.md. None is typed by hand: a test compares the committed pages with what this command writes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from benchmarks.peers.page import write_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "benchmarks"
ABSENT = ""

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
"""Around the figures of README.md."""

Row = dict[str, str]
Column = tuple[str, str, str]
"""Head, name in the CSV, and kind of its values: see `show`."""


def show(value: str, kind: str) -> str:
    """Return a value of a CSV as the table has it.

    Kinds: ``text``; ``count``, with thousands separators; a digit, so many significant digits.
    """
    if value == ABSENT or kind == "text":
        return value.replace("|", "\\|")
    number = float(value)
    if kind == "count":
        return f"{number:,.10g}" if number == int(number) else f"{number:,.1f}"
    if number == 0:
        return "0"
    if not math.isfinite(number):
        return "–"
    mantissa, exponent = f"{number:.{int(kind) - 1}e}".split("e")
    if -3 <= int(exponent) < 4:
        return f"{number:,.{max(int(kind) - 1 - int(exponent), 0)}f}"
    return f"{mantissa}e{int(exponent)}"


@dataclass(frozen=True)
class Table:
    """Columns of one CSV file."""

    source: str
    columns: Sequence[Column]
    caption: str = ""
    only: dict[str, Sequence[str]] = field(default_factory=dict)
    """Lines to keep: values by column."""
    by: Sequence[str] = ()
    """Lines with equal values here become one, with the range of every other column."""
    across: tuple[str, dict[str, str]] | None = None
    """A column whose values become columns, with their heads; the last of `columns` fills them."""

    def lines(self) -> list[list[str]]:
        """Return the head and the cells of every line."""
        with (ROOT / self.source).open(newline="") as file:
            rows = [
                row
                for row in csv.DictReader(file)
                if all(row[key] in values for key, values in self.only.items())
            ]
        if self.across is not None:
            return self._spread(rows, *self.across)
        head = [head for head, _, _ in self.columns]
        groups = [list(group) for _, group in groupby(rows, self._key)] if self.by else []
        lines = groups or [[row] for row in rows]
        return [head] + [
            [_range([row[name] for row in line], kind) for _, name, kind in self.columns]
            for line in lines
        ]

    def _key(self, row: Row) -> list[str]:
        return [row[name] for name in self.by]

    def _spread(self, rows: Iterable[Row], name: str, heads: dict[str, str]) -> list[list[str]]:
        *index, (_, value, kind) = self.columns
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for row in rows:
            cells = lines.setdefault(tuple(show(row[of], how) for _, of, how in index), {})
            cells[row[name]] = show(row[value], kind)
        body = [[*key, *(cells.get(one, "") for one in heads)] for key, cells in lines.items()]
        return [[head for head, _, _ in index] + list(heads.values()), *body]

    def markdown(self) -> str:
        """Return the table, its caption and where it is from."""
        head, *body = self.lines()
        rule = ["---" if kind == "text" else "---:" for _, _, kind in self.columns]
        rule += [rule[-1]] * (len(head) - len(rule))
        text = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule[: len(head)], *body))
        return f"{self.caption}\n\n{text}\n\nSource: `{self.source}`."


def _range(values: Sequence[str], kind: str) -> str:
    """Return one value, or the least and the largest of several."""
    if kind == "text":
        return ", ".join(dict.fromkeys(show(value, kind) for value in values))
    if len(values) == 1:
        return show(values[0], kind)
    ends = min(values, key=float), max(values, key=float)
    return " to ".join(dict.fromkeys(show(value, kind) for value in ends))


@dataclass(frozen=True)
class Page:
    """A page of tables, and the commands that write their CSV files."""

    name: str
    title: str
    commands: Sequence[str]
    text: str
    tables: Sequence[Table]
    picture: str = ""
    """Beside the CSV files."""

    def markdown(self) -> str:
        """Return the whole page."""
        blocks = [
            "<!-- Written by `python -m benchmarks.pages`; edit that, not this. -->",
            f"# {self.title}",
            self.text,
            "```\n" + "\n".join(self.commands) + "\n```",
            *([f"![{self.title}](../../{RESULTS}{self.picture})"] if self.picture else []),
            *(table.markdown() for table in self.tables),
        ]
        return "\n\n".join(blocks) + "\n"


RESULTS = "benchmarks/results/"

QUALITY = Page(
    "quality",
    "Quality: nats against rows",
    ["DECOCT_DATA=FOLDER python -m benchmarks.quality"],
    "KL(coreset‖full) in nats by 4,000 NUTS draws of the coreset posterior, every row evaluated "
    "at each. Medians over seeds. An empty cell was not measured: rows alone need about d(d + "
    "3)/2 rows.",
    [
        Table(
            RESULTS + "quality.csv",
            [("set", "set", "text"), ("N", "N", "count"), ("KL", "kl_median", "2")],
            "**A site and rows.** By the number of rows asked for:",
            only={"site": ["True"]},
            across=("size", {"0": "site alone", "10": "10 rows", "50": "50", "100": "100"}),
        ),
        Table(
            RESULTS + "quality.csv",
            [("set", "set", "text"), ("N", "N", "count"), ("KL", "kl_median", "2")],
            "**Rows alone** (`IteratedHilbert(site=False)`):",
            only={"site": ["False"]},
            across=("size", {"10": "10 rows", "50": "50", "100": "100"}),
        ),
        Table(
            RESULTS + "quality.csv",
            [
                ("set", "set", "text"),
                ("site", "site", "text"),
                ("rows asked", "size", "count"),
                ("kept", "rows", "count"),
                ("KL", "kl_median", "2"),
                ("standard error", "kl_se", "1"),
                ("least", "kl_min", "2"),
                ("largest", "kl_max", "2"),
            ],
            "**Every measurement.** Standard error by Monte Carlo; least and largest over seeds:",
        ),
    ],
)

CONSTRUCTIONS = Page(
    "constructions",
    "Constructions compared",
    [
        "DECOCT_DATA=FOLDER python -m benchmarks.constructions",
        "DECOCT_DATA=FOLDER taskset -c 0 python -m benchmarks.sparse_vi",
        "python -m benchmarks.sparse_vi --million",
        "DECOCT_DATA=FOLDER python -m benchmarks.hilbert",
        "python -m benchmarks.greedy --rows 1000000 --draws 500 --size 1000 --products 30 "
        "--solvers frank_wolfe giga --build",
    ],
    "All of them keep rows alone, without a site, as their papers do.",
    [
        Table(
            RESULTS + "constructions.csv",
            [
                ("set", "set", "text"),
                ("d", "dim", "count"),
                ("rows asked", "size", "count"),
                ("rows alone", "kl_median", "2"),
                ("SparseVI", "sparse_vi_kl", "2"),
                ("GIGA, optimal π̂", "giga_optimal_kl", "2"),
                ("GIGA, realistic π̂", "giga_realistic_kl", "2"),
                ("uniform", "uniform_kl", "2"),
            ],
            "**Five constructions.** KL between Laplace fits, nats; "
            "`IteratedHilbert(site=False)` is the median of its seeds:",
        ),
        Table(
            RESULTS + "sparse_vi.csv",
            [
                ("problem", "problem", "text"),
                ("method", "method", "text"),
                ("picks", "asked", "count"),
                ("rows", "rows", "count"),
                ("KL over prior's", "fraction_median", "2"),
                ("least", "fraction_min", "2"),
                ("largest", "fraction_max", "2"),
                ("published", "published", "2"),
                ("goal", "goal", "2"),
                ("CPU s", "cpu_warm", "2"),
                ("CPU s, cold", "cpu_cold", "2"),
                ("published CPU s", "cpu_published", "3"),
            ],
            "**SparseVI beside the published program.** KL as a fraction of the prior's, one core:",
        ),
        Table(
            RESULTS + "sparse_vi_million.csv",
            [
                ("N", "n_rows", "count"),
                ("d", "covariates", "count"),
                ("picks", "asked", "count"),
                ("rows", "rows", "count"),
                ("seed", "seed", "text"),
                ("KL", "kl_nats", "2"),
                ("seconds", "wall_s", "3"),
                ("passes", "passes", "count"),
            ],
            "**SparseVI on a million rows:**",
        ),
        Table(
            RESULTS + "hilbert.csv",
            [
                ("set", "set", "text"),
                ("solver", "solver", "text"),
                ("iterations", "M", "count"),
                ("rows", "rows", "count"),
                ("KL over prior's", "ratio_median", "2"),
                ("published", "published", "2"),
            ],
            "**Solvers beside the published ones.** KL between Laplace fits as a fraction of the "
            "prior's, median:",
        ),
        Table(
            RESULTS + "greedy.csv",
            [
                ("solver", "solver", "text"),
                ("rows", "rows", "count"),
                ("draws", "draws", "count"),
                ("steps", "steps", "count"),
                ("kept", "kept", "count"),
                ("seconds", "seconds", "3"),
                ("bare products, s", "bare_products_s", "3"),
                ("peak GB", "peak_gb", "3"),
            ],
            "**Greedy builds of a million rows** beside the matrix products that they cannot "
            "avoid:",
        ),
    ],
)

COST_COLUMNS = [
    ("case", "case", "text"),
    ("rows kept", "rows", "count"),
    ("predicted KL", "predicted_kl", "2"),
    ("first build, s", "first_s", "2"),
    ("again, s", "again_s", "2"),
    ("likelihoods", "likelihoods", "count"),
    ("peak GB", "peak_gb", "2"),
]

COST = Page(
    "cost",
    "Cost: seconds and memory of a build",
    ["python -m benchmarks.cost", "python -m benchmarks.estimate", "python -m benchmarks.startup"],
    "On two shared cores: ratios say more than seconds. A *likelihood* is one evaluation of all "
    "N rows.",
    [
        Table(
            RESULTS + "cost.csv",
            COST_COLUMNS,
            "**Ten rows and a site.** The first build of a process compiles, the second does not:",
        ),
        Table(
            RESULTS + "cost_gpu.csv",
            COST_COLUMNS,
            "**The same on a GPU**, an NVIDIA H200 with 16 cores beside it, JAX 0.11.2, Python "
            "3.12; the peak is that of the process, not of the GPU:",
        ),
        Table(
            RESULTS + "estimate.csv",
            [
                ("problem", "problem", "text"),
                ("rows asked", "size", "count"),
                ("estimated CPU s", "estimated_cpu_s", "3"),
                ("build, CPU s", "build_cpu_s", "3"),
                ("ratio", "ratio", "2"),
                ("status", "status", "text"),
            ],
            "**`decoct.estimate` beside the build**:",
        ),
        Table(
            RESULTS + "startup.csv",
            [
                ("process", "process", "text"),
                ("CPU s", "cpu_s", "2"),
                ("elapsed s", "elapsed_s", "2"),
            ],
            "**Starting**, median of seven processes; and the whole of `decoct demo`, once each:",
        ),
    ],
    "cost.png",
)

SCALE_COLUMNS = [
    ("N", "n", "count"),
    ("rows", "rows", "count"),
    ("KL", "kl", "2"),
    ("upper end", "kl_upper", "2"),
    ("likelihoods", "evaluations", "count"),
    ("build, s", "build_s", "2"),
    ("sample, s", "sample_s", "2"),
    ("check, s", "check_s", "2"),
    ("peak GB", "peak_gb", "2"),
    ("NUTS on all rows, s", "full_s", "3"),
    ("", "full", "text"),
    ("its gradients", "full_gradients", "count"),
    ("by likelihoods", "ratio_by_evaluations", "2"),
]

SCALE = Page(
    "scale",
    "Scale: ten thousand to ten million rows",
    ["python -m benchmarks.scale --full-to 1e4 --long-to 0 --dask 1e7"],
    "Logistic regression, ten coefficients, generated Parquet; built, sampled with NUTS "
    "(4 × 1,000 draws) and certified at 400 draws on two cores.",
    [
        Table(
            RESULTS + "scale.csv",
            SCALE_COLUMNS,
            "**Ten rows and a site.** The last column is how often the likelihoods of build and "
            "check go into the gradients of NUTS on all rows, a gradient of which counts once:",
        ),
        Table(
            RESULTS + "scale_pass.csv",
            [("code", "code", "text"), ("potentials a second", "per_second", "3")],
            "**One pass** beside plain JAX and NumPy:",
        ),
        Table(
            RESULTS + "scale_dask.csv",
            [
                ("workers", "workers", "text"),
                ("cores", "cores", "text"),
                ("first build, s", "cold_seconds", "3"),
                ("again, s", "seconds", "3"),
                ("KL", "kl", "3"),
            ],
            "**A Dask cluster**, ten million rows, measured three times. Lines with 0 "
            "workers are this process without Dask:",
        ),
    ],
    "scale.png",
)

MULTILEVEL = Page(
    "multilevel",
    "Multilevel models",
    ["DECOCT_DATA=FOLDER python -m benchmarks.multilevel --full"],
    "Effects of groups, the site in likelihood parameters. NUTS on all rows stands beside the "
    "tables where it ends in reasonable time: its chains run one after the other, decoct's on both "
    "cores. A gradient of all 2,000,000 flights takes 0.04 to 0.05 s, so that 4,000 steps of 31 "
    "gradients would take 4,900 to 6,500 s (extrapolated; "
    "`python -m examples.hierarchical.flights`). Radon and the pupils were run with all programs "
    "in the compilation cache, those of NUTS on all rows too. With an empty one "
    "(`XDG_CACHE_HOME=FOLDER`) radon takes 29 + 5.4 + 1.0 s, beside 36 s. An expansion of "
    "1,000,000 rows of two sets of groups takes 0.32 s at 10 likelihood parameters, 0.56 s at "
    "1,000 and 1.3 s at 2,002 (`--passes`).",
    [
        Table(
            RESULTS + "multilevel.csv",
            [
                ("case", "case", "text"),
                ("N", "N", "count"),
                ("parameters", "parameters", "count"),
                ("rows", "rows", "count"),
                ("KL", "kl", "2"),
                ("low", "kl_low", "2"),
                ("high", "kl_high", "2"),
                ("k-hat", "khat", "2"),
                ("R-hat", "rhat", "3"),
                ("divergences", "divergences", "count"),
            ],
            "**Certificates**, with 95 % intervals; k-hat counts where the KL is above 1e-4 "
            "([why](../can_i_trust_it.md)):",
        ),
        Table(
            RESULTS + "multilevel.csv",
            [
                ("case", "case", "text"),
                ("build, s", "build_s", "2"),
                ("sample, s", "sample_s", "2"),
                ("check, s", "check_s", "2"),
                ("leapfrogs a draw", "leapfrogs", "count"),
                ("peak GB", "peak_gb", "2"),
                ("NUTS on all rows, s", "full_s", "2"),
                ("its leapfrogs", "full_leapfrogs", "count"),
            ],
            "**Time**, on two cores of an AMD EPYC:",
        ),
        Table(
            RESULTS + "multilevel.csv",
            [
                ("case", "case", "text"),
                ("worst shift of a mean, sd", "shift", "2"),
                ("Monte Carlo error", "shift_error", "2"),
                ("worst error of an sd", "sd_off", "2"),
                ("its Monte Carlo error", "sd_error", "2"),
            ],
            "**Beside NUTS on all rows.** Where nothing is off, the worst of eight parameters is "
            "1.8 Monte Carlo errors off on average, above 2.7 once in twenty. With 1,000 rows a "
            "group NUTS on all rows mixes slowly, hence its error:",
            only={
                "case": ["flights, 300,000", "election88", "radon", "chem97, pupils"]
                + [f"groups of {n:,}" for n in (3, 10, 30, 100, 300, 1000)]
            },
        ),
    ],
)

CERTIFICATES = Page(
    "certificates",
    "Certificates: intervals, and samples of rows",
    ["python -m benchmarks.subsampled_certificate", "python -m benchmarks.coverage"],
    "The same draws judged from a sample of rows and from all rows, on good coresets and on "
    "broken ones.",
    [
        Table(
            RESULTS + "subsampled_certificate.csv",
            [
                ("coreset", "problem", "text"),
                ("rows kept", "size", "count"),
                ("rows evaluated", "evaluated", "count"),
                ("KL", "kl", "2"),
                ("grade", "grade", "text"),
                ("KL, all rows", "exact_kl", "2"),
                ("grade", "exact_grade", "text"),
                ("falsely good", "wrongly_content", "text"),
            ],
            "**A sample of rows beside all rows**, range over three seeds:",
            by=("problem", "size"),
        ),
        Table(
            RESULTS + "coverage.csv",
            [
                ("problem", "problem", "text"),
                ("true KL", "kl", "2"),
                ("seeds", "seeds", "count"),
                ("median k-hat", "median_khat", "2"),
                ("coverage", "coverage", "3"),
                ("interval above", "above", "2"),
                ("interval below", "below", "2"),
            ],
            "**How often the 95 % interval holds the truth:**",
        ),
    ],
)

QUESTIONS = Page(
    "questions",
    "Questions after a fit",
    ["python -m benchmarks.questions"],
    "Logistic regression, ten coefficients, Parquet files, ten rows and a site, 1,000 draws. Every "
    "question has a process of its own, with the certificate it needs. Passes are rows read over "
    "N.",
    [
        Table(
            RESULTS + "questions.csv",
            [
                ("N", "n", "count"),
                ("question", "question", "text"),
                ("seconds", "seconds", "2"),
                ("passes", "passes", "3"),
                ("peak GB", "peak_gb", "2"),
            ],
            "**Seconds, with compiling, and memory**, on two cores of an AMD EPYC:",
        )
    ],
)

STREAMS = Page(
    "streams",
    "Streams",
    ["DECOCT_DATA=FOLDER python -m benchmarks.streams"],
    "A stream beside one build of the whole table, and uniform rows of the same number. No KL is "
    "predicted where the posterior drifts by more than 5 sd.",
    [
        Table(
            RESULTS + "streams.csv",
            [
                ("set", "set", "text"),
                ("rows asked", "size", "count"),
                ("stream, KL", "stream_kl", "2"),
                ("predicted", "predicted_kl", "2"),
                ("one build", "build_kl", "2"),
                ("uniform", "uniform_kl", "2"),
                ("drift, sd", "drift", "2"),
                ("rows in memory", "rows_in_memory", "count"),
                ("stream, CPU s", "stream_cpu_s", "2"),
                ("build, CPU s", "build_cpu_s", "2"),
            ],
        )
    ],
)

BRIDGES = Page(
    "bridges",
    "NumPyro and PyMC models",
    ["python -m benchmarks.bridges", "python -m benchmarks.bridges --overhead"],
    "The framework's own sampler on all rows and on a coreset of rows alone.",
    [
        Table(
            RESULTS + "bridges.csv",
            [
                ("framework", "framework", "text"),
                ("model", "model", "text"),
                ("N", "N", "count"),
                ("d", "dim", "count"),
                ("rows", "rows", "count"),
                ("KL", "kl", "2"),
                ("worst shift, sd", "shift", "2"),
                ("Monte Carlo error", "shift_error", "2"),
                ("build, s", "build_seconds", "3"),
                ("sample coreset, s", "coreset_seconds", "3"),
                ("sample all rows, s", "full_seconds", "3"),
            ],
            "**Posteriors and times:**",
        ),
        Table(
            RESULTS + "bridges_overhead.csv",
            [
                ("framework", "framework", "text"),
                ("likelihood", "likelihood", "text"),
                ("pass", "pass", "text"),
                ("own model, s", "hand_written", "2"),
                ("bridge, s", "bridge", "2"),
                ("ratio", "ratio", "3"),
            ],
            "**A pass through a bridge** beside the same pass of our own model:",
        ),
    ],
)

MIXTURES = Page(
    "mixtures",
    "Mixtures",
    ["python -m benchmarks.mixture"],
    "`decoct.mixture` beside scikit-learn, and fits to coresets beside fits to all rows.",
    [Table(RESULTS + "mixture.csv", [("figure", "figure", "text"), ("value", "value", "3")])],
)

HILBERT = "experiments/hilbert/results/"
HILBERT_PAPER = Page(
    "paper_hilbert",
    "Figures of Campbell & Broderick (2019)",
    [
        "python -m experiments.hilbert.figure_2 --trials 100",
        "DECOCT_DATA=FOLDER python -m experiments.hilbert.runs --trials 3",
        "DECOCT_DATA=FOLDER python -m experiments.hilbert.figure_3 --trials 3   # to figure_9",
    ],
    "What the tables say beside the paper: [Hilbert coresets, re-run](../experiments_hilbert.md).",
    [
        Table(
            HILBERT + "figure_2_e.csv",
            [("M", "M", "count"), ("KL", "kl_median", "2")],
            "**Figure 2(e).** Forward KL in nats, median:",
            across=(
                "method",
                {
                    "Rand": "random rows",
                    "Unif": "uniform",
                    "IS": "importance sampling",
                    "FW": "Frank–Wolfe",
                    "FW, fixed step": "fixed step",
                    "GIGA": "GIGA",
                    "orthogonal pursuit": "pursuit",
                },
            ),
        ),
        *(
            Table(
                f"{HILBERT}figure_{number}.csv",
                [("set", "set", "text"), ("iterations", "M", "count"), ("", "wasserstein", "2")],
                f"**Figure {number}.** Wasserstein distance over that of two full-data samples, "
                "median:",
                across=("method", heads),
            )
            for number, heads in (
                (
                    7,
                    {
                        "Rand": "random rows",
                        "Unif": "uniform coreset",
                        "IS-F": "importance sampling",
                    },
                ),
                (8, {"IS-F": "importance sampling, Fisher norm", "IS-2": "2-norm"}),
                (9, {"FW-F": "Frank–Wolfe, Fisher norm", "FW-2": "2-norm"}),
            )
        ),
    ],
)

SPARSE_VI = "experiments/sparse_vi/results/"
_EXACT = {
    "SparseVI, exact": "SparseVI",
    "SparseVI, exact, published steps": "published steps",
    "GIGA, optimal π̂": "GIGA, optimal π̂",
    "GIGA, realistic π̂": "GIGA, realistic π̂",
    "uniform": "uniform",
}
SPARSE_VI_PAPER = Page(
    "paper_sparse_vi",
    "Figures of Campbell & Beronov (2019)",
    [
        "python -m experiments.sparse_vi.figure_2",
        "DECOCT_DATA=FOLDER python -m experiments.sparse_vi.figure_3",
        "DECOCT_DATA=FOLDER python -m experiments.sparse_vi.regression_runs",
        "python -m experiments.sparse_vi.figure_4",
    ],
    "What the tables say beside the paper: [SparseVI, re-run](../experiments_sparse_vi.md).",
    [
        Table(
            SPARSE_VI + "figure_2_a.csv",
            [("M", "M", "count"), ("", "reverse_median", "3")],
            "**Figure 2(a).** Mean of a Gaussian, d = 200: KL(π_w‖π) in nats, median:",
            across=(
                "method",
                {
                    "SparseVI, exact": "SparseVI",
                    "SparseVI, exact, 2M picks": "2M picks",
                    "SparseVI, exact, published steps": "published steps",
                    "SparseVI, 100 draws": "100 draws",
                    "SparseVI, 100 draws, published steps": "100 draws, published steps",
                    "GIGA, optimal π̂": "GIGA, optimal π̂",
                    "GIGA, optimal π̂, exact norm": "exact norm",
                    "GIGA, realistic π̂": "GIGA, realistic π̂",
                    "uniform": "uniform",
                },
            ),
        ),
        *(
            Table(
                SPARSE_VI + "figure_3_a.csv",
                [("M", "M", "count"), ("", name, "2")],
                f"**Figure 3(a), {place}.** {kl} in nats, median:",
                only={"set": [of], "method": list(_EXACT)},
                across=("method", _EXACT),
            )
            for of, place in (("ukprices_2018", "UK"), ("california_housing", "California"))
            for name, kl in (("reverse_median", "KL(π_w‖π)"), ("forward_median", "KL(π‖π_w)"))
        ),
        *(
            Table(
                SPARSE_VI + "figure_4.csv",
                [("set", "set", "text"), ("M", "M", "count"), ("", name, "2")],
                caption,
                only={"M": ["10", "20", "50", "100"]},
                across=(
                    "method",
                    {
                        "published": "published",
                        "sparse_vi": "SparseVI",
                        "iterated_hilbert": "IteratedHilbert",
                        "giga_optimal": "GIGA, optimal π̂",
                        "giga_realistic": "GIGA, realistic π̂",
                        "uniform": "uniform",
                    },
                ),
            )
            for name, caption in (
                ("kl_fraction", "**Figure 4.** KL(π_w‖π) over that of the prior, median:"),
                ("rows", "**Figure 4.** Rows kept, median:"),
                ("cpu_s", "**Figure 5.** CPU seconds, median:"),
            )
        ),
    ],
)

DPGMM_PAPER = Page(
    "paper_dpgmm",
    "Figures of Borsos, Bachem & Krause (2017)",
    ["DECOCT_DATA=FOLDER python -m experiments.dpgmm.figure_3"],
    "What the table says beside the paper: [DP mixtures, re-run](../experiments_dpgmm.md). The "
    "reading `inverse` is W₀⁻¹ = 10·I, `printed` is W₀ = 10·I.",
    [
        Table(
            "experiments/dpgmm/results/figure_3.csv",
            [
                ("set", "set", "text"),
                ("reading", "reading", "text"),
                ("method", "method", "text"),
                ("M", "M", "count"),
                ("% of N", "percent", "text"),
                ("error", "error", "2"),
                ("low", "error_low", "2"),
                ("high", "error_high", "2"),
                ("speed-up", "speedup", "2"),
                ("N/M", "n_over_m", "2"),
                ("runs", "runs", "count"),
                ("splits", "splits", "count"),
            ],
            "**Figure 3.** Relative error of the held-out log probability with its 95 % "
            "interval, and the median speed-up:",
        )
    ],
)

PAGES = (
    QUALITY,
    COST,
    SCALE,
    MULTILEVEL,
    CERTIFICATES,
    QUESTIONS,
    CONSTRUCTIONS,
    STREAMS,
    BRIDGES,
    MIXTURES,
    HILBERT_PAPER,
    SPARSE_VI_PAPER,
    DPGMM_PAPER,
)


def index() -> str:
    """Return the page that lists the others."""
    entries = "\n".join(f"- [{page.title}]({page.name}.md)" for page in PAGES)
    tree = "\n".join(page.name for page in PAGES)
    return (
        "<!-- Written by `python -m benchmarks.pages`; edit that, not this. -->\n\n"
        "# Benchmarks\n\n"
        "Every table here is written from a committed CSV file by `python -m benchmarks.pages`. "
        "Each page begins with the commands that measure its CSV files. An empty cell was not "
        "measured; 0 is below rounding.\n\n"
        f"{entries}\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )


def readme() -> str:
    """Return README.md with the figures of ``decoct demo --json``."""
    found = json.loads((ROOT / RESULTS / "demo.json").read_text(encoding="utf-8"))
    full, nuts = found["full_laplace"], found["nuts_on_all_rows"]
    phases = ("building the coresets", "sampling the coreset", "certificate")
    seconds = sum(found["seconds"][phase] for phase in phases)
    sizes = len(found["curve"]["coreset, predicted"][0])
    lines = [
        ("coreset and its site", found["coreset"]),
        ("Laplace fit to all rows", {**full, "rows": found["data"]["rows"]}),
        *(("uniform subsample", one) for one in found["uniform"]),
    ]
    table = [
        f"| {name} | {one['rows']:,} | {show(str(one['kl']), '2')} "
        f"| {show(str(one['worst_mean_error']), '2')} | {show(str(one['worst_sd_ratio']), '3')} |"
        for name, one in lines
    ]
    text = "\n".join(
        [
            f"`make demo`, {found['data']['coefficients']} coefficients, two shared cores: "
            f"{seconds:.0f} s to build {sizes} sizes, sample and certify.",
            "Errors are measured at NUTS draws; for uniform rows, between Laplace fits.",
            "",
            "| | rows | KL, nats | worst mean error, posterior sd | worst sd ratio |",
            "|---|---|---|---|---|",
            *table,
            "",
            f"NUTS with {nuts['warmup']:,} steps of warm-up on all rows would take "
            f"{nuts['seconds']:.0f} s, extrapolated from "
            f"{1e3 * nuts['gradient_seconds']:.0f} ms a gradient.",
        ]
    )
    before, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def texts() -> dict[str, str]:
    """Return every page by file name."""
    return {"index.md": index(), **{f"{page.name}.md": page.markdown() for page in PAGES}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the pages")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (output / name).write_text(text, encoding="utf-8")
        print(output / name)
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
    write_page(ROOT / RESULTS / "peers.csv")


if __name__ == "__main__":
    main()
