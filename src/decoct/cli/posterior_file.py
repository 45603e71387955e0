"""Draws in a netCDF file, marked with the coreset that they came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoct.errors import RequestError
from decoct.runtime.files import write_atomically
from decoct.samplers.datatree import MARK

if TYPE_CHECKING:
    import xarray as xr

    from decoct.coreset import Coreset

ENGINE = "h5netcdf"


def write_posterior(draws: xr.DataTree, path: Path) -> None:
    """Write the draws, completely or not at all."""
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
    if draws.attrs.get(MARK, coreset.fingerprint) != coreset.fingerprint:
        raise RequestError(
            f"{path} was sampled from another coreset; sample this one with 'decoct sample'."
        )
    return draws
