"""Names are those of the files that a folder has now, though its files are not listed each time."""

import os
from pathlib import Path

import pytest

from clustersim.simulator.reading import lookup


@pytest.mark.parametrize("seconds", [0, 10, 1e9], ids=["just changed", "changed before", "long unchanged"])
def test_a_new_file_is_found_at_once(seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"lab_{abs(hash(tmp_path))}"
    folder = tmp_path / package
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "one.yaml").touch()
    before = folder.stat().st_mtime - seconds
    os.utime(folder, (before, before))
    assert lookup.names(package) == ["one"]
    (folder / "two.yaml").touch()
    assert lookup.names(package) == ["one", "two"]
    (folder / "one.yaml").unlink()
    assert lookup.names(package) == ["two"]


def test_a_folder_that_stays_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"lab_{abs(hash(tmp_path))}"
    folder = tmp_path / package
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "one.yaml").touch()
    os.utime(folder, (0, 0))
    listed: list[str] = []
    listdir = os.listdir

    def noted(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", noted)
    for _ in range(3):
        assert lookup.data_file(package, f"{package}.one") == folder / "one.yaml"
    assert listed.count(str(folder)) == 1
