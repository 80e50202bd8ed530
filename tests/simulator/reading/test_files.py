"""Files are written whole or not at all; files that are read have a size limit."""

import errno
import os
import stat
from pathlib import Path

import pytest

from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import UnreadableFile, read_rows, read_text, write_text, written


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_file_that_is_broken_off_leaves_the_old_one_whole(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "result.json"
    write_text(path, "old")
    with pytest.raises((SimulatorError, KeyboardInterrupt)), written(path) as beside:
        beside.write_text("ne")
        raise error
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["result.json"]


def test_a_new_file_replaces_the_old_one_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_text(path, "one")
    path.chmod(0o640)
    write_text(path, "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to("there")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "new"


def test_a_device_is_written_directly() -> None:
    write_text(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulatorError, match=r"cannot write .*file/x: (Not a directory|File exists)"):
        write_text(tmp_path / "file" / "x", "text")
    with pytest.raises(SimulatorError, match="the name has a zero byte"):
        write_text(tmp_path / "a\0b", "text")


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("x" * 100)
    (tmp_path / "zero").write_bytes(b"a\0")
    (tmp_path / "latin").write_bytes(b"\xe9t\xe9")
    cases = {
        Path("/dev/zero"): "is a device or a pipe; give a file",
        tmp_path / "pipe": "is a device or a pipe; give a file",
        tmp_path: "is a directory",
        tmp_path / "none": "cannot be read: No such file or directory",
        tmp_path / "zero": "is not a text file: it has a zero byte at 1",
        tmp_path / "latin": "is not a text file: byte 0xe9 at 0 is not UTF-8",
    }
    for path, reason in cases.items():
        with pytest.raises(UnreadableFile) as error:
            read_text(path, 2**20)
        assert str(error.value) == f"{path}: {reason}"
    with pytest.raises(UnreadableFile, match="is larger than"):
        read_text(tmp_path / "large", 99)
    assert read_text(tmp_path / "large", 100) == "x" * 100


def test_a_table_has_each_column_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b'\xef\xbb\xbfa,b\r\n\r\n1,"x\r\ny"\r\n')
    assert [(row.line, row.cells) for row in read_rows(path)] == [(1, ["a", "b"]), (4, ["1", "x\r\ny"])]
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(UnreadableFile, match=r'runs\.csv:1: the header has the column "a" twice'):
        list(read_rows(path))
    path.write_text('a\n"open\n')
    with pytest.raises(UnreadableFile, match=r"runs\.csv:2: is no table of comma-separated values: "):
        list(read_rows(path))
