"""A stream on disk: everything it holds, in one .npz file of arrays and JSON. No pickle."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from decoct.building.checkpoint import read_checkpoint, write_checkpoint
from decoct.coreset import Coreset
from decoct.errors import DecoctError, RequestError
from decoct.models.base import AbstractModel
from decoct.models.fingerprint import EXAMPLES, find_difference, fingerprint
from decoct.models.site import GaussianSite
from decoct.report import Report
from decoct.runtime.files import require_writable
from decoct.streams.merge import is_of_functions

FORMAT = 5


class State(NamedTuple):
    """All that a stream has seen and kept.

    ``held`` are the rows that were kept, with their site, and then those that wait, each of weight
    1; None before the first row. ``values`` are the smallest few of the response.
    """

    held: Coreset | None = None
    n_waiting: int = 0
    values: tuple[float, ...] = ()


def write_stream(path: str | os.PathLike[str], identity: dict[str, Any], state: State) -> None:
    """Write a stream, completely or not at all; ``identity`` is what `restored` compares."""
    content = {"stream": FORMAT, **identity, "held": None, "functions": None}
    content |= {"n_waiting": state.n_waiting, "values": list(state.values)}
    held = state.held
    if held is not None:
        content["held"] = {
            "indices": held.indices,
            "weights": held.weights,
            "rows": {  # strings are Python objects, which the file keeps as JSON
                name: {"text": values.tolist()} if values.dtype.kind == "O" else values
                for name, values in held.rows.items()
            },
            "n_rows": held.n_rows,
            "report": held.report.to_dict(),
            "site": held.site and held.site.to_dict(),
        }
        if held.size and is_of_functions(held.model):
            content["functions"] = fingerprint(held.model, _examples(held))
    write_checkpoint(require_writable(path, "path"), content)


def read_stream(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `write_stream` wrote."""
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


def restored(
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
    held = packed["held"]
    try:
        if held is not None:
            rows = {
                name: np.array(values["text"], dtype=object) if isinstance(values, dict) else values
                for name, values in held["rows"].items()
            }
            site = held["site"] and GaussianSite.from_dict(held["site"])
            report = Report.from_dict(held["report"])
            held = Coreset(**{**held, "rows": rows, "site": site, "report": report}, model=model)
        state = State(held, packed["n_waiting"], tuple(packed["values"]))
    except (KeyError, TypeError, ValueError, DecoctError) as error:
        raise RequestError(f"{path} is a damaged stream ({error!r}).") from error
    if packed["functions"] is not None:
        differs = find_difference(packed["functions"], model, _examples(state.held))
        if differs is not None:
            raise RequestError(f"The stream in {path} has another model: {differs}.")
    return state


def _examples(held: Any) -> Any:
    some = {name: values[:EXAMPLES] for name, values in held.rows.items()}
    return held.model.encode(some, held.indices[:EXAMPLES])
