"""The commands and their help; whatever is heavy is imported when a command runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from inspect import BoundArguments
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError

from decoct.cli import options as opt
from decoct.cli import output as out
from decoct.cli.build import build
from decoct.cli.check import check
from decoct.cli.compare import compare
from decoct.cli.plot import plot
from decoct.cli.predict import predict
from decoct.cli.report import report
from decoct.cli.sample import sample
from decoct.runtime.interrupts import Received, terminable

HELP = """Compress a large table to a few weighted rows and a quadratic site for all others.

For example:

```
decoct build flights.parquet --formula "late ~ temp + C(origin)" \\
    --family bernoulli --size 10 -o late.coreset.parquet
decoct sample late.coreset.parquet -o posterior.nc
decoct check late.coreset.parquet flights.parquet --posterior posterior.nc
decoct predict late.coreset.parquet new.parquet --posterior posterior.nc -o predictions.parquet
decoct plot late.coreset.parquet flights.parquet -o pictures
decoct report late.coreset.parquet flights.parquet -o report.html
decoct compare flights.parquet --formula "late ~ temp" --family bernoulli --sizes 50 200
```

Results go to stdout, progress and errors to stderr. Exit codes: 0 done; 1 finished, but short of
what was asked; 2 bad input, nothing written; 130 interrupted; 143 terminated. A build that was
interrupted or terminated resumes from its --checkpoint when the same command is run again.
"""


def demo(
    *,
    output: opt.OutputPath = Path("decoct-demo"),
    rows: opt.MaybeWhole = None,
    seed: opt.Seed = 0,
    json: opt.Json = False,
) -> int:
    """Run the whole workflow on 291,140 flights out of New York: build, sample, check, plot.

    Parameters
    ----------
    output
        The folder for the files and pictures.
    rows
        Use only this many flights, chosen at random.
    seed
        Seed of everything random.
    """
    from decoct.demo.run import demo as run_demo

    return run_demo(output=output, rows=rows, seed=seed, json=json)


def version() -> str:
    """Return the program's name and version."""
    import decoct

    return f"decoct {decoct.__version__}"


app = App(name="decoct", help=HELP, version=version, help_format="markdown")
for command in (build, sample, check, predict, compare, plot, report, demo):
    app.command(command)


def run(arguments: list[str]) -> int:
    """Run the command that the words ask for and return its exit code."""
    try:
        command, bound, *_ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise out.UsageError(str(error)) from None
    with terminable() as received:
        try:
            code = _carry_out(command, bound, received)
        except SystemExit:  # rich exits when the pipe that reads the help is closed
            return out.DONE
        except KeyboardInterrupt as stop:
            if received.by is not signal.SIGTERM:
                raise
            out.complain((str(stop) or "interrupted.").replace("interrupted", "terminated", 1))
            return out.TERMINATED
    return code if isinstance(code, int) else out.DONE


def _carry_out(command: Callable[..., Any], bound: BoundArguments, received: Received) -> Any:
    try:
        return command(*bound.args, **bound.kwargs)
    except Exception:
        if received.by is None:
            raise
        # a library turned the interruption into this error
        raise KeyboardInterrupt from None
