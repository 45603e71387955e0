"""A stream on disk: everything it holds, in one .npz file of arrays and JSON. No pickle."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from decoct.building.checkpoint import read_checkpoint, write_checkpoint
from decoct.coreset import Coreset
from decoct.data.base import Columns
from decoct.errors import DecoctError, RequestError
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.fingerprint import EXAMPLES, find_difference, fingerprint
from decoct.models.site import GaussianSite
from decoct.report import Report
from decoct.runtime.files import require_writable

FORMAT = 5


class State(NamedTuple):
    """All that a stream has seen and kept.

    ``kept`` stands for the rows before those that wait. ``waiting`` has the latter as they came;
    without any row, the types of the columns. ``values`` are the smallest few of the response.
    """

    waiting: Columns
    kept: Coreset | None = None
    values: tuple[float, ...] = ()


def write_stream(
    path: str | os.PathLike[str], model: AbstractModel, identity: dict[str, Any], state: State
) -> None:
    """Write a stream, completely or not at all; ``identity`` is what `read_stream` compares."""
    rows, kept = _examples(state), state.kept
    ours = type(model).__module__.partition(".")[0] == "decoct"
    content: dict[str, Any] = {"stream": FORMAT, **identity, "functions": None, "kept": None}
    if rows is not None and (not ours or model.to_dict()["kind"] in OF_FUNCTIONS):
        content["functions"] = fingerprint(model, model.encode(rows))
    content |= {"waiting": _packed(state.waiting), "values": list(state.values)}
    if kept is not None:
        content["kept"] = {
            "arrays": {"indices": kept.indices, "weights": kept.weights},
            "rows": _packed(kept.rows),
            "n_rows": kept.n_rows,
            "report": kept.report.to_dict(),
            "site": None if kept.site is None else vars(kept.site),
        }
    write_checkpoint(require_writable(path, "path"), content)


def read_stream(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `write_stream` wrote, for `read_state`."""
    packed = read_checkpoint(path)
    version = packed.get("stream")
    if version is None:
        raise RequestError(f"{path} is no stream; save one with save().")
    if version != FORMAT:
        raise RequestError(
            f"The stream in {path} has format {version}, this decoct reads {FORMAT}; go on with "
            "the decoct that saved it."
        )
    return packed


def read_state(
    path: str | os.PathLike[str],
    packed: dict[str, Any],
    model: AbstractModel,
    identity: dict[str, Any],
) -> State:
    """Return the state in a file, or refuse a file of another model, method or sampler."""
    for name, value in identity.items():
        if packed[name] != value:
            raise RequestError(
                f"The stream in {path} has another {name}: {packed[name]}, not {value}."
            )
    try:
        kept, values = packed["kept"], tuple(packed["values"])
        if kept is not None:
            site = None if kept["site"] is None else GaussianSite.from_dict(kept["site"])
            arrays, rows = kept["arrays"], _unpacked(kept["rows"])
            report, n_rows = Report.from_dict(kept["report"]), kept["n_rows"]
            kept = Coreset(
                **arrays, rows=rows, n_rows=n_rows, model=model, report=report, site=site
            )
        state = State(_unpacked(packed["waiting"]), kept, values)
    except (KeyError, TypeError, ValueError, DecoctError) as error:
        raise RequestError(f"{path} is a damaged stream ({error!r}).") from error
    known, rows = packed["functions"], _examples(state)
    if known is not None and rows is not None:
        differs = find_difference(known, model, model.encode(rows))
        if differs is not None:
            raise RequestError(f"The stream in {path} has another model: {differs}.")
    return state


def _examples(state: State) -> Columns | None:
    """Return the first rows in memory."""
    for rows in ({} if state.kept is None else state.kept.rows, state.waiting):
        if rows and len(next(iter(rows.values()))):
            return {name: values[:EXAMPLES] for name, values in rows.items()}
    return None


def _packed(columns: Any) -> dict[str, Any]:
    """Strings are Python objects, which the file keeps as JSON."""
    return {
        name: {"text": values.tolist()} if values.dtype.kind == "O" else values
        for name, values in columns.items()
    }


def _unpacked(packed: dict[str, Any]) -> Columns:
    return {
        name: np.array(values["text"], dtype=object) if isinstance(values, dict) else values
        for name, values in packed.items()
    }
