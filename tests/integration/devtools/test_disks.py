"""Disks that tests break: each failure has its documented effect, and a repair restores
everything.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.harness.disks import Disk, Failure, Folder, make_disk

pytestmark = pytest.mark.integration


@pytest.fixture(params=["best", "folder"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """The most realistic disk that this process can make, and the fallback."""
    if request.param == "folder":
        yield Folder(tmp_path / "disk")
    else:
        with make_disk(tmp_path / "disk") as made:
            yield made


def refusal(path: Path) -> int | None:
    """The errno for the creation of another file; None if it succeeds."""
    try:
        path.touch()
    except OSError as error:
        return error.errno
    return None


def test_full_disk_accepts_no_file_until_space_is_freed(disk: Disk) -> None:
    kept = disk.path / "kept"
    kept.write_text("kept")
    wanted = errno.ENOTDIR if isinstance(disk, Folder) else errno.ENOSPC
    for _ in range(2):
        disk.fill()
        assert refusal(disk.path / "more") == wanted
    disk.repair()
    assert refusal(disk.path / "more") is None
    assert kept.read_text() == "kept"


def test_disk_can_be_filled_again_after_a_deletion(disk: Disk) -> None:
    deleted = disk.path / "deleted"
    deleted.touch()
    disk.fill()
    if not isinstance(disk, Folder):
        deleted.unlink()
        disk.fill()
    assert refusal(disk.path / "more") is not None


@pytest.mark.parametrize("failure", get_args(Failure))
def test_failed_disk_accepts_no_file_until_it_is_repaired(disk: Disk, failure: Failure) -> None:
    kept = disk.path / "kept"
    kept.write_text("kept")
    os.sync()
    with kept.open("rb", buffering=0) as file:
        disk.fail(failure)
        if disk.needs_closed_files:
            assert refusal(disk.path / "more") == errno.EIO
            with pytest.raises(OSError, match="Input/output error"):
                file.read()
        else:
            assert not kept.exists()
            assert file.read() == b"kept", "what is open can be read"
    disk.repair()
    assert kept.read_text() == "kept"
    assert refusal(disk.path / "more") is None


def test_unsynced_data_is_lost_only_on_a_torn_disk(disk: Disk) -> None:
    left: dict[Failure, bool] = {}
    for failure in get_args(Failure):
        path = disk.path / failure
        path.write_text("new")
        disk.fail(failure)
        disk.repair()
        left[failure] = path.exists()
    nothing_is_lost = isinstance(disk, Folder)
    assert left == {"unreadable": True, "torn": nothing_is_lost, "absent": True}
