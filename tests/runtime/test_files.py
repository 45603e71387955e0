"""Outputs: links are followed, and only regular files are replaced."""

import os
import stat

import pytest

from decoct.errors import RequestError
from decoct.runtime.files import require_writable, write_atomically


def write(path, text):
    def fill(temporary):
        with open(temporary, "w") as file:
            file.write(text)

    write_atomically(path, fill)


@pytest.fixture(params=["pipe", "device", "link to a device"])
def special(request, tmp_path):
    """What is no regular file, with its kind."""
    path = tmp_path / "output"
    if request.param == "pipe":
        os.mkfifo(path)
        return path, stat.S_ISFIFO
    if request.param == "link to a device":
        path.symlink_to("/dev/null")
        return path, stat.S_ISCHR
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    return path, stat.S_ISCHR


def test_what_is_no_regular_file_is_refused_and_stays(special, tmp_path):
    path, is_kind = special
    for attempt in (lambda: require_writable(path, "--output"), lambda: write(path, "new")):
        with pytest.raises(RequestError, match="a device, pipe or socket"):
            attempt()
    assert is_kind(os.stat(path).st_mode)
    assert os.listdir(tmp_path) == ["output"]


def test_a_link_stays_and_its_file_is_written(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "file").write_text("old")
    (tmp_path / "link").symlink_to(folder / "file")
    (tmp_path / "dangling").symlink_to(folder / "made")
    for name, target in (("link", "file"), ("dangling", "made")):
        require_writable(tmp_path / name, "--output")
        write(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (folder / target).read_text() == "new"
    assert sorted(os.listdir(folder)) == ["file", "made"]


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(RequestError, match=r"--output cannot be written to .*a: .*links"):
        require_writable(tmp_path / "a", "--output")


@pytest.mark.parametrize("path", [None, 5, b"name"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(RequestError, match=r"checkpoint must be a path, not"):
        require_writable(path, "checkpoint")
