"""A stream on disk: everything it holds, in one .npz file of arrays and JSON. No pickle."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from decoct.building.checkpoint import read_checkpoint, write_checkpoint
from decoct.constructions.base import Selection, pack, unpack
from decoct.data.base import Columns
from decoct.errors import RequestError
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.fingerprint import EXAMPLES, find_difference, fingerprint
from decoct.runtime.files import require_writable
from decoct.stats.divergences import Gaussian

FORMAT = 5


class State(NamedTuple):
    """All that a stream has seen and kept.

    Rows ``waiting`` come after the ``start`` rows that were compressed; without any row they hold
    the columns' types. ``kept`` has the weighted encoded rows and the site that stand for those
    before, ``raw`` the same rows as they came. ``places`` are those of the posterior at the last
    compression, at the last one of an even number, of one divisible by 4, by 8, …: a few that stand
    for them all; ``drift`` is most sd that it has moved from one of them. ``predicted_kl`` adds up
    what the compressions were predicted to lose; ``values`` are the smallest few of the response.
    """

    waiting: dict[str, np.ndarray]
    raw: dict[str, np.ndarray]
    kept: Selection | None = None
    start: int = 0
    keep: int = 0
    compressions: int = 0
    places: tuple[Gaussian, ...] = ()
    drift: float = 0.0
    predicted_kl: float | None = 0.0
    evaluations: int = 0
    seconds: float = 0.0
    values: tuple[float, ...] = ()


PathName = str | os.PathLike[str]


def write_stream(
    path: PathName,
    model: AbstractModel,
    identity: dict[str, str],
    options: dict[str, Any],
    state: State,
) -> None:
    """Write a stream, completely or not at all; ``identity`` must be the same when it is read."""
    rows = _examples(state)
    ours = type(model).__module__.partition(".")[0] == "decoct"
    known = None
    if rows is not None and (not ours or model.to_dict()["kind"] in OF_FUNCTIONS):
        known = fingerprint(model, model.encode(rows))
    content = {"stream": FORMAT, **identity, "options": options, "functions": known}
    for name in ("waiting", "raw"):  # a file of arrays keeps Python objects as text
        columns = getattr(state, name)
        text = {n: v.tolist() for n, v in columns.items() if v.dtype.kind == "O"}
        content[name] = text
        state = state._replace(**{name: {n: v for n, v in columns.items() if n not in text}})
    content["state"] = pack(state)
    write_checkpoint(require_writable(path, "path"), content)


def read_stream(path: PathName) -> dict[str, Any]:
    """Return what `write_stream` wrote, to be unpacked by `read_state`."""
    packed = read_checkpoint(path)
    if packed.get("stream") is None:
        raise RequestError(f"{path} is no stream; save one with save().")
    if packed["stream"] != FORMAT:
        raise RequestError(
            f"The stream in {path} has format {packed['stream']}, this decoct reads {FORMAT}; go "
            "on with the decoct that saved it."
        )
    return packed


def read_state(
    path: PathName,
    packed: dict[str, Any],
    model: AbstractModel,
    identity: dict[str, str],
) -> State:
    """Return the state in a file, or refuse a file of another model, method or sampler."""
    for name, value in identity.items():
        if packed[name] != value:
            raise RequestError(
                f"The stream in {path} has another {name}: {packed[name]}, not {value}."
            )
    try:
        state = unpack(State, packed["state"])
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{path} is a damaged stream ({error!r}).") from error
    for name in ("waiting", "raw"):
        text = {n: np.array(v, dtype=object) for n, v in packed[name].items()}
        state = state._replace(**{name: getattr(state, name) | text})
    known, rows = packed["functions"], _examples(state)
    if known is not None and rows is not None:
        differs = find_difference(known, model, model.encode(rows))
        if differs is not None:
            raise RequestError(f"The stream in {path} has another model: {differs}.")
    return state


def _examples(state: State) -> Columns | None:
    """Return the first rows in memory."""
    for rows in (state.raw, state.waiting):
        if rows and len(next(iter(rows.values()))):
            return {name: values[:EXAMPLES] for name, values in rows.items()}
    return None
