"""The disks that tests break: each failure is what its name says, and a repair brings all back."""

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
    """The best that this process can make, and the one for everybody."""
    if request.param == "folder":
        yield Folder(tmp_path / "disk")
    else:
        with make_disk(tmp_path / "disk") as made:
            yield made


def refusal(path: Path) -> int | None:
    """What the system says to one more file."""
    try:
        path.touch()
    except OSError as error:
        return error.errno
    return None


def test_a_full_disk_takes_no_more_files_until_there_is_room(disk: Disk) -> None:
    kept = disk.path / "kept"
    kept.write_text("kept")
    wanted = errno.ENOTDIR if isinstance(disk, Folder) else errno.ENOSPC
    for _ in range(2):
        disk.fill()
        assert refusal(disk.path / "more") == wanted
    disk.repair()
    assert refusal(disk.path / "more") is None
    assert kept.read_text() == "kept"


def test_a_full_disk_is_full_again_after_a_deletion(disk: Disk) -> None:
    deleted = disk.path / "deleted"
    deleted.touch()
    disk.fill()
    if not isinstance(disk, Folder):
        deleted.unlink()
        disk.fill()
    assert refusal(disk.path / "more") is not None


@pytest.mark.parametrize("failure", get_args(Failure))
def test_a_disk_that_fails_takes_no_files_until_it_is_repaired(
    disk: Disk, failure: Failure
) -> None:
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


def test_what_was_not_synced_is_lost_on_a_torn_disk_alone(disk: Disk) -> None:
    left: dict[Failure, bool] = {}
    for failure in get_args(Failure):
        path = disk.path / failure
        path.write_text("new")
        disk.fail(failure)
        disk.repair()
        left[failure] = path.exists()
    nothing_is_lost = isinstance(disk, Folder)
    assert left == {"unreadable": True, "torn": nothing_is_lost, "absent": True}
