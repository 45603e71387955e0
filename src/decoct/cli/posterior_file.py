"""Draws in a netCDF file, marked with the coreset that they came from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoct.errors import RequestError
from decoct.runtime.files import write_atomically

if TYPE_CHECKING:
    import xarray as xr

    from decoct.coreset import Coreset

MARK = "decoct_coreset"
"""Attribute of the file's root: a fingerprint of the kept rows' numbers and weights."""

ENGINE = "h5netcdf"


def write_posterior(draws: xr.DataTree, coreset: Coreset, path: Path) -> None:
    """Write the draws, completely or not at all."""
    draws.attrs[MARK] = fingerprint(coreset)
    # in memory first: HDF5 crashes the process when the disk is full
    content: Any = draws.to_netcdf(engine=ENGINE)
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(content))


def read_posterior(path: Path, coreset: Coreset) -> xr.DataTree:
    """Read draws of this coreset's posterior; draws without a mark are accepted."""
    import xarray as xr

    if not path.is_file():
        raise RequestError(f"There is no file {path}; write one with 'decoct sample'.")
    try:
        with xr.open_datatree(path, engine=ENGINE) as opened:
            draws = opened.load()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"{path} is not a readable netCDF file of draws ({reason}).") from error
    if draws.attrs.get(MARK, fingerprint(coreset)) != fingerprint(coreset):
        raise RequestError(
            f"{path} was sampled from another coreset; sample this one with 'decoct sample'."
        )
    return draws


def fingerprint(coreset: Coreset) -> str:
    """Return a digest of the row numbers and weights."""
    indices = np.ascontiguousarray(coreset.indices, dtype="<i8")
    weights = np.ascontiguousarray(coreset.weights, dtype="<f8")
    return hashlib.sha256(indices.tobytes() + weights.tobytes()).hexdigest()
