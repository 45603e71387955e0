"""A stream on disk: everything it holds, in one .npz file of arrays and JSON. No pickle."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from decoct.building.checkpoint import read_checkpoint, write_checkpoint
from decoct.constructions.base import Selection
from decoct.data.base import Columns
from decoct.errors import RequestError
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.fingerprint import EXAMPLES, find_difference, fingerprint
from decoct.report import described
from decoct.runtime.files import require_writable
from decoct.samplers.base import Sampler
from decoct.stats.divergences import Gaussian
from decoct.streams.error_sum import ErrorSum
from decoct.streams.incoming import Buffer, Layout
from decoct.streams.part import Part
from decoct.streams.state import State
from decoct.streams.tree import Plan, Reference, Tally, Tree

FORMAT = 4


def write_stream(stream: Any, path: str | os.PathLike[str]) -> None:
    """Write a stream, completely or not at all."""
    target = require_writable(path, "path")
    state = stream.state
    tree, layout = state.tree, state.layout
    write_checkpoint(
        target,
        {
            "stream": FORMAT,
            "model": repr(stream.model.to_dict()),
            "functions": _fingerprint(stream.model, state),
            "sampler": repr(described(stream.sampler)),
            "size": stream.size,
            "seed": stream.seed,
            "options": {**stream.options, "reach": stream.reach},
            "plan": None if state.plan is None else asdict(state.plan),
            "layout": {n: [kind.str, list(shape)] for n, (kind, shape) in layout.columns.items()},
            "start": state.buffer.start,
            "waiting": _packed_columns(state.buffer.columns()) if state.buffer.pieces else None,
            "levels": [None if part is None else str(i) for i, part in enumerate(tree.levels)],
            "parts": {str(i): _packed(part) for i, part in enumerate(tree.levels) if part},
            "leaves": tree.leaves,
            "reference": None if tree.reference is None else vars(tree.reference),
            "tally": asdict(tree.tally),
            "seconds": state.seconds,
            "values": list(state.values),
        },
    )


def read_stream(
    kind: Callable[..., Any],
    path: str | os.PathLike[str],
    model: AbstractModel,
    sampler: Sampler | None,
    progress: bool | None,
) -> Any:
    """Read a stream that `write_stream` wrote."""
    packed = read_checkpoint(path)
    version = packed.get("stream")
    if version is None:
        raise RequestError(f"{path} is no stream; save one with save().")
    if version != FORMAT:
        raise RequestError(
            f"The stream in {path} has format {version}, this decoct reads {FORMAT}; go on with "
            "the decoct that saved it."
        )
    stream = kind(
        model,
        packed["size"],
        sampler=sampler,
        seed=packed["seed"],
        progress=progress,
        **packed["options"],
    )
    mine = {"model": model.to_dict(), "sampler": described(stream.sampler)}
    for name, value in mine.items():
        if packed[name] != repr(value):
            raise RequestError(
                f"The stream in {path} has another {name}: {packed[name]}, not {value!r}."
            )
    try:
        stream.state = _state(packed, model)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path} is a damaged stream ({error!r}).") from error
    known, rows = packed["functions"], _held_rows(stream.state)
    if known is not None and rows is not None:
        differs = find_difference(known, model, model.encode(rows))
        if differs is not None:
            raise RequestError(f"The stream in {path} has another model: {differs}.")
    return stream


def _fingerprint(model: AbstractModel, state: State) -> dict[str, Any] | None:
    """Return values of the model's functions at the first rows that are held.

    None for a model of decoct's own, whose description says all, and for a stream without rows.
    """
    ours = type(model).__module__.partition(".")[0] == "decoct"
    rows = _held_rows(state)
    if (ours and model.to_dict()["kind"] not in OF_FUNCTIONS) or rows is None:
        return None
    return fingerprint(model, model.encode(rows))


def _held_rows(state: State) -> Columns | None:
    parts = state.tree.parts
    if not parts and not state.buffer.pieces:
        return None
    held = parts[0].raw if parts else state.buffer.columns()
    return {name: values[:EXAMPLES] for name, values in held.items()}


def _state(packed: dict[str, Any], model: AbstractModel) -> State:
    layout = {n: (np.dtype(kind), tuple(shape)) for n, (kind, shape) in packed["layout"].items()}
    waiting, reference, tally = packed["waiting"], packed["reference"], packed["tally"]
    parts = packed["parts"]
    tree = Tree(
        tuple(None if i is None else _part(parts[i], model) for i in packed["levels"]),
        packed["leaves"],
        None if reference is None else Reference(**reference),
        Tally(**{**tally, "losses": tuple((n, kl) for n, kl in tally["losses"])}),
    )
    return State(
        Layout(layout),
        Buffer(packed["start"], () if waiting is None else (_columns(waiting),)),
        tree,
        None if packed["plan"] is None else Plan(**packed["plan"]),
        packed["seconds"],
        tuple(packed["values"]),
    )


def _packed(part: Part) -> dict[str, Any]:
    return {
        "indices": part.selection.indices,
        "weights": part.selection.weights,
        "raw": _packed_columns(part.raw),
        "error": asdict(part.error),
        "seen": None if part.seen is None else part.seen._asdict(),
        "drift": part.drift,
    }


def _part(packed: dict[str, Any], model: AbstractModel) -> Part:
    raw, seen = _columns(packed["raw"]), packed["seen"]
    rows = {n: np.asarray(v) for n, v in model.encode(raw, packed["indices"]).items()}
    return Part(
        Selection(packed["indices"], packed["weights"], rows),
        raw,
        ErrorSum(**packed["error"]),
        None if seen is None else Gaussian(**seen),
        packed["drift"],
    )


def _packed_columns(columns: Columns) -> dict[str, Any]:
    """Strings are Python objects, which the file keeps as JSON."""
    return {
        name: {"text": values.tolist()} if values.dtype.kind == "O" else values
        for name, values in columns.items()
    }


def _columns(packed: dict[str, Any]) -> Columns:
    return {
        name: np.array(values["text"], dtype=object) if isinstance(values, dict) else values
        for name, values in packed.items()
    }
