"""Files or a data set, opened: their parts and common columns.

And which files a path, a folder, a pattern or a URL means.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from decoct.data.arrow_columns import unwrap_type
from decoct.data.arrow_parts import PAGE_BUFFER, CsvPart, IpcPart, ParquetPart, Part, ScannedPart
from decoct.data.file_faults import explain_errors
from decoct.errors import RowsError

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".csv.gz")

_READERS = 16
"""Threads that open files; behind a URL each of them mostly waits."""


def open_dataset(
    source: str | Path | Sequence[str | Path] | ds.Dataset,
) -> tuple[ds.Dataset, list[Part]]:
    """Return a source of rows as a data set, and its parts in order; see `ArrowRows`.

    Columns of several files must agree: numbers are widened to a common type.
    """
    if isinstance(source, ds.Dataset):
        return source, _list_parts(source)
    files, base, remote = find_files(source)
    filesystem: fs.FileSystem = fs.LocalFileSystem()
    if remote is not None:
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(remote))
    is_parquet = files[0].lower().endswith(PARQUET)
    kind = ds.ParquetFileFormat() if is_parquet else ds.CsvFileFormat()
    layout: dict[str, Any] = {"partitioning": "hive", "partition_base_dir": base} if base else {}
    with explain_errors(files[0], "Parquet" if is_parquet else "CSV"):
        dataset = ds.dataset(files, format=kind, filesystem=filesystem, **layout)
    make: Callable[..., Part] = ParquetPart if is_parquet else CsvPart
    fragments = list(dataset.get_fragments())
    with ThreadPoolExecutor(_READERS, "decoct-open") as readers:
        parts: list[Part] = list(readers.map(make, fragments))
    schema = _unify_schemas({part.path: part.schema for part in parts})
    partitions = [field for field in dataset.schema if field.name not in schema.names]
    schema = pa.schema([*schema, *unwrap_fields(partitions)])
    return ds.FileSystemDataset(fragments, schema, kind, filesystem), parts


def _list_parts(dataset: ds.Dataset) -> list[Part]:
    if getattr(dataset, "_scan_options", None):
        # filtered: only the scanner finds out which rows are kept
        return [ScannedPart("The data set", dataset.schema, _choose_scan(dataset), dataset)]
    parts = [_open_fragment(fragment, dataset.schema) for fragment in dataset.get_fragments()]
    if not parts:
        raise RowsError("The table is empty: the data set has no files.")
    return parts


def _open_fragment(fragment: ds.Fragment, schema: pa.Schema) -> Part:
    path = getattr(fragment, "path", "The data set")
    with explain_errors(path, "data"):
        if isinstance(fragment, ds.ParquetFileFragment):
            return ParquetPart(fragment, [group.id for group in fragment.row_groups])
        if isinstance(fragment, ds.FileFragment) and isinstance(fragment.format, ds.IpcFileFormat):
            return IpcPart(fragment)
        inferred = fragment.physical_schema
    return ScannedPart(path, inferred, partial(fragment.scanner, schema=schema), fragment)


def _choose_scan(dataset: ds.Dataset) -> Callable[..., ds.Scanner]:
    """Return the scanner of a data set; that of Parquet files is set to save memory."""
    plain = ds.ParquetFragmentScanOptions()
    form = getattr(dataset, "format", None)
    options = getattr(form, "default_fragment_scan_options", None)
    if not isinstance(form, ds.ParquetFileFormat) or options != plain:
        return dataset.scanner
    options = ds.ParquetFragmentScanOptions(
        use_buffered_stream=True, buffer_size=PAGE_BUFFER, pre_buffer=False
    )
    return partial(dataset.scanner, fragment_scan_options=options)


def unwrap_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, unwrap_type(field.type)) for field in fields]


def check_unique(path: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RowsError(f"{path} has two columns '{name}'; rename one.")


def _unify_schemas(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of all files, numbers widened, or say which two files disagree."""
    first, schema = next(iter(schemas.items()))
    common = {field.name: field for field in unwrap_fields(schema)}
    for path, other in schemas.items():
        check_unique(path, other.names)
        for name in sorted(set(common) ^ set(other.names)):
            one, two = (first, path) if name in common else (path, first)
            raise RowsError(
                f"The files differ in their columns: '{name}' is in {one} but not in {two}; give "
                "every file the same columns."
            )
        for field in unwrap_fields(other):
            common[field.name] = _widen(common[field.name], field, first, path)
    return pa.schema(list(common.values()))


def _widen(one: pa.Field, two: pa.Field, first: str, path: str) -> pa.Field:
    if one.type == two.type:
        return one
    try:
        merged = pa.unify_schemas(
            [pa.schema([one]), pa.schema([two])], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise RowsError(
            f"Column '{one.name}' is {one.type} in {first} but {two.type} in {path}; "
            "write it with one type."
        ) from error
    return merged.field(0)


class FoundFiles(NamedTuple):
    """The sorted paths that a source means, and the folder that was searched, if there was one.

    ``filesystem`` is that of fsspec; None for local files.
    """

    files: list[str]
    base: str | None
    filesystem: Any = None


def is_remote(source: object) -> bool:
    """Whether a source is a URL such as ``s3://bucket/folder``, or a list with one in it."""
    if isinstance(source, (list, tuple)):
        return any(is_remote(entry) for entry in source)
    return isinstance(source, str) and "://" in source


def find_files(source: str | Path | Sequence[str | Path]) -> FoundFiles:
    """Return the data files of a path, a folder, a pattern, a URL, or a list of these.

    URLs mean Parquet files alone, all of one protocol. Refused are paths without data files, files
    of two kinds, and URLs that cannot be listed or whose protocol needs a package.
    """
    if is_remote(source):
        return _find_remote(source)
    if isinstance(source, (str, Path)):
        files, base = _expand(str(source))
    else:
        files, base = [file for entry in source for file in _expand(str(entry))[0]], None
        if not files:
            raise RowsError("The list of files is empty; name at least one.")
    files = sorted(files)
    _check_local(files)
    if len({file.lower().endswith(PARQUET) for file in files}) > 1:
        raise RowsError(f"{source} mixes Parquet and CSV files; name those of one kind.")
    return FoundFiles(files, base)


def _find_remote(source: str | Path | Sequence[str | Path]) -> FoundFiles:
    urls = [str(url) for url in ([source] if isinstance(source, (str, Path)) else source)]
    protocols = {url.partition("://")[0] if is_remote(url) else "" for url in urls}
    if len(protocols) > 1:
        raise RowsError(
            "The list of files mixes URLs of different protocols, or URLs and local paths; name "
            "files in one place."
        )
    found = [_expand_url(url) for url in urls]
    files = sorted(file for one in found for file in one.files)
    _check_distinct(files)
    return FoundFiles(files, found[0].base if len(found) == 1 else None, found[0].filesystem)


def _expand_url(url: str) -> FoundFiles:
    filesystem, path = _open_url(url)
    try:
        filesystem.invalidate_cache()
        if _is_pattern(path, "*["):  # not "?", which begins a query
            found = _match_remote(filesystem, path)
            base = "/".join(takewhile(lambda piece: not _is_pattern(piece, "*["), path.split("/")))
        elif filesystem.isdir(path):
            found, base = filesystem.find(path), path
        else:
            found, base = [path] if filesystem.exists(path) else [], None
    except Exception as error:
        raise RowsError(
            f"{url} could not be listed ({type(error).__name__}: {error}); check the address and "
            "your credentials."
        ) from error
    files = [file for file in found if base is None or not _is_note(file, base)]
    if not files:
        raise RowsError(f"There is no file at {url}; check the address.")
    files = [file for file in files if file.lower().endswith(PARQUET)]
    if not files:
        raise RowsError(
            f"{url} has no Parquet files ({', '.join(PARQUET)}); tables behind a URL are Parquet, "
            "so convert it or copy it to a local disk."
        )
    return FoundFiles(files, base, filesystem)


def _match_remote(filesystem: Any, pattern: str) -> list[str]:
    found: set[str] = set()
    for match, info in filesystem.glob(pattern, detail=True).items():
        if info["type"] != "directory":
            found.add(match)
        elif "**" not in pattern:
            found.update(filesystem.find(match))
    return list(found)


def _open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path on it."""
    try:
        from fsspec.core import url_to_fs

        return url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise RowsError(
            f"{url} cannot be read ({error}); pip install fsspec and the package of its protocol. "
            "Local paths are written without '://'."
        ) from error


def _is_note(file: str, folder: str) -> bool:
    """Whether a file, or a folder above it, is a marker such as ``_SUCCESS``."""
    inside = file.strip("/").removeprefix(folder.strip("/")).strip("/")
    return any(_is_hidden(piece) for piece in inside.split("/"))


def _check_distinct(files: Sequence[str]) -> None:
    for one, two in pairwise(files):
        if one == two:
            raise RowsError(f"{one} is listed twice: its rows would count double.")


def _check_local(files: Sequence[str]) -> None:
    """Refuse names that are not UTF-8, broken links, and two names of one file."""
    names: dict[tuple[int, int | str], str] = {}
    for file in files:
        try:
            file.encode()
        except UnicodeEncodeError as error:
            name = os.fsencode(file).decode(errors="replace")
            raise RowsError(f"The name of {name} is not UTF-8; rename the file.") from error
    _check_distinct(files)
    for file in files:
        if not os.path.exists(file):
            raise RowsError(f"{file} is a link that leads to no file; fix or remove it.")
        found = os.stat(file)
        other = names.setdefault((found.st_dev, found.st_ino or os.path.realpath(file)), file)
        if other != file:
            raise RowsError(f"{file} is {other} by another name: its rows would count double.")


def _expand(text: str) -> tuple[list[str], str | None]:
    if not text:
        raise RowsError("The path is empty; name a file, a folder or a pattern.")
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:
        raise RowsError(f"{text!r} cannot be a path here ({error}); check it.") from error
    if path.is_dir():
        return _list_folder(path), str(path)
    if path.exists():
        if not _is_data(text):
            raise RowsError(
                f"The name of {text} ends neither in {', '.join(PARQUET)} (Parquet) nor in "
                f"{', '.join(CSV)} (CSV); convert or rename it."
            )
        return [str(path)], None
    if _is_pattern(text):
        return _match(path)
    raise RowsError(f"There is no file or folder {text} (from {Path.cwd()}); check the path.")


def _list_folder(folder: Path) -> list[str]:
    files: list[str] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        # links may lead in circles
        new = os.path.realpath(place) not in seen
        seen.add(os.path.realpath(place))
        # writers leave markers such as _SUCCESS and folders such as .tmp
        folders[:] = [name for name in folders if new and not _is_hidden(name)]
        found = [name for name in names if new and _is_data(name) and not _is_hidden(name)]
        files += [os.path.join(place, name) for name in found]
    if not files:
        raise RowsError(f"The folder {folder} has no data files ({', '.join(PARQUET + CSV)}).")
    return files


def _refuse(error: OSError) -> None:
    # what cannot be listed may contain rows: without them it would be another table
    raise RowsError(
        f"The folder {error.filename} cannot be listed ({error.strerror}); ask for permission."
    )


def _match(pattern: Path) -> tuple[list[str], str]:
    files: dict[tuple[str, str], str] = {}
    # short paths first: links may lead in circles, along which "**" finds every file again
    for match in sorted(glob.glob(str(pattern), recursive=True), key=len):
        if Path(match).is_dir():
            found = [] if "**" in pattern.parts else _list_folder(Path(match))
        else:
            found = [match] if _is_data(match) else []
        for file in found:
            folder, name = os.path.split(file)
            files.setdefault((os.path.realpath(folder), name), file)
    if not files:
        raise RowsError(f"No data file matches {pattern}; check the pattern.")
    base = Path(*takewhile(lambda piece: not _is_pattern(piece), pattern.parts))
    return list(files.values()), str(base)


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _is_pattern(text: str, signs: str = "*?[") -> bool:
    return any(sign in text for sign in signs)


def _is_data(name: str) -> bool:
    return name.lower().endswith(PARQUET + CSV)
