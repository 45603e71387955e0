"""Draws in a netCDF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoct.errors import RequestError
from decoct.runtime.files import write_atomically

if TYPE_CHECKING:
    import xarray as xr

ENGINE = "h5netcdf"


def write_posterior(draws: xr.DataTree, path: Path) -> None:
    """Write the draws, completely or not at all."""
    # in memory first: HDF5 crashes the process when the disk is full
    content: Any = draws.to_netcdf(engine=ENGINE)
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(content))


def read_posterior(path: Path) -> xr.DataTree:
    """Read draws that `write_posterior` wrote."""
    import xarray as xr

    if not path.is_file():
        raise RequestError(f"There is no file {path}; write one with 'decoct sample'.")
    try:
        with xr.open_datatree(path, engine=ENGINE) as opened:
            return opened.load()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"{path} is not a readable netCDF file of draws ({reason}).") from error
