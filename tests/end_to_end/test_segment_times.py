"""Start and close times of a segment, as a broker leaves them on its disk."""

from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.segments.listing import read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset
from sidetier.uploader.pinning.pins import pin
from tests.harness.ledger import Ledger
from tests.harness.local_segments import log_bases
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

LONG_AGO_MS = 1_700_000_000_000


def test_closed_segment_gives_its_roll_time_and_largest_timestamp(
    kraft43: KraftCluster, topic: str
) -> None:
    """A slow topic: the append that rolls the segment comes long after the last one in it."""
    directory = kraft43.log_dirs(1)[0] / f"{topic}-0"
    configs = {
        "segment.ms": 1000,
        "retention.ms": -1,
        "message.timestamp.before.max.ms": 2**62,
    }
    create_topic(kraft43.bootstrap_servers, topic, configs=configs)
    ledger = Ledger()
    ledger.produce(kraft43.bootstrap_servers, topic, 10, timestamp=LONG_AGO_MS)
    first = directory / segment_file_name(BaseOffset(0), FileKind.LOG)
    beside = directory / "partition.metadata"

    def is_two_seconds_old() -> bool:
        beside.touch()  # the file system's own clock
        return beside.stat().st_mtime > first.stat().st_mtime + 2

    wait_until(is_two_seconds_old, 10, "the last append to be two seconds ago")
    ledger.produce(kraft43.bootstrap_servers, topic, 1, timestamp=LONG_AGO_MS + 3_600_000)
    wait_until(lambda: log_bases(directory) == [0, 10], 10, "the roll")
    (closed,) = read_listing(path.name for path in directory.iterdir()).closed
    pinned = pin(str(directory), closed)
    try:
        times = pinned.times()
    finally:
        pinned.close()
    rolled = modified(directory, FileKind.SNAPSHOT, 10)
    assert times.largest_timestamp == LONG_AGO_MS / 1000
    assert times.rolled - first.stat().st_mtime >= 2
    assert times.rolled == pytest.approx(rolled, abs=0.5)
    assert modified(directory, FileKind.LOG, 10) == pytest.approx(rolled, abs=0.5)


def modified(directory: Path, kind: FileKind, base: int) -> float:
    return (directory / segment_file_name(BaseOffset(base), kind)).stat().st_mtime
