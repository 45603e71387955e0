"""The command line: ``decoct build``, ``sample``, ``check``, ``predict`` and others.

Exit codes: 0 done; 1 finished, but short of what was asked; 2 bad input; 130 interrupted;
143 terminated; 70, with a traceback, for an error in decoct.
"""

from __future__ import annotations

import io
import sys
import traceback
import warnings
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default that of this process, and return its exit code."""
    try:
        from decoct.cli import output
        from decoct.errors import DecoctError
    except KeyboardInterrupt:
        print("decoct: interrupted.", file=sys.stderr)
        return 130

    for stream in (sys.stdout, sys.stderr):
        # a file on Windows may lack characters such as ‖
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from decoct.cli.app import run

        with warnings.catch_warnings():
            warnings.showwarning = output.show_warning
            return output.finish(run(list(sys.argv[1:] if arguments is None else arguments)))
    except KeyboardInterrupt as stop:
        # one that came while some module ran exec() would let Python end as killed by the signal,
        # though it was caught here; the next exec() forgets it
        exec("")
        output.complain(str(stop) or "interrupted.")
        return output.INTERRUPTED
    except (DecoctError, OSError) as error:
        output.complain(output.sentence(error))
        return output.BAD_INPUT
    except Exception:
        traceback.print_exc()
        output.complain("this is an error in decoct; please report it with the lines above.")
        return output.BROKEN
