"""An archive that the version 0.1.0-dev of commit 36a711da has stored is read and continued.

`tests/fixtures/archives/0.1.0-dev` is its directory of a file-system store, without lock files. It
was made with the code of that commit:

1. `sidetier backfill` over a log dir with three closed segments of `orders-0`
   (`tests/harness/log_dir.py`) and the segments of `tests/fixtures/segments/tx-0` below 261.
2. Three more closed segments of `orders-0`; those below 40 were deleted, and 40 became the start
   of the log. A second `sidetier backfill` archived the rest and recorded the gap from 30 to 40.
3. Functions of that version (`archive/objects`, `uploader/chapters.py`) stored an acknowledgement
   of the gap, a start record of `started-0`, a chapter of `tx-0` (with `SEGMENTS` = 4), the record
   of a drill, and the cluster snapshots of `tests/harness/cluster_states.py` with their index.
"""

import json
import os
import shutil
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from sidetier.archive.objects.chapters import read_chapter, stored_chapters
from sidetier.archive.objects.cluster_snapshots import read_cluster_state, read_index
from sidetier.archive.objects.drill_record import read_drill
from sidetier.archive.objects.starts import settle_start
from sidetier.archive.objects.watermark import read_watermark
from sidetier.segments.cluster_state import SnapshotKind
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.cluster_states import STATE
from tests.harness.command_line import CommandLine
from tests.harness.log_dir import PartitionLog
from tests.harness.markdown import ROOT

ARCHIVE = ROOT / "tests/fixtures/archives/0.1.0-dev"
TX_LOG = ROOT / "tests/fixtures/segments/tx-0"
LAYOUT = ArchiveLayout("prod-a", 3)
ORDERS, TX = TopicPartition("orders", 0), TopicPartition("tx", 0)
STARTED = TopicPartition("started", 0)


@pytest.fixture
def earlier(cli: CommandLine) -> CommandLine:
    """The archive as the store of the command line."""
    shutil.copytree(ARCHIVE, cli.store)
    for record in (cli.store / ".sidetier/meta").rglob("*.json"):
        # The store finds an object's metadata by its modification time, which Git does not keep.
        fields = json.loads(record.read_text(encoding="utf-8"))
        time_ns = fields["versions"][-1]["modified_ns"]
        os.utime(cli.store / fields["key"], ns=(time_ns, time_ns))
    return cli


def _grow(cli: CommandLine) -> PartitionLog:
    """Write the log dir with the archived segments that the broker still has, and with one more
    closed segment of each partition.
    """
    log = cli.log_dir.create(*ORDERS)
    log.closed_segments(7)
    for base in (0, 10, 20, 30):
        log.unlink(base)
    log.start_at(40)
    shutil.copytree(TX_LOG, cli.log_dir.path / str(TX))
    cli.log_dir.checkpoint_high_watermarks({ORDERS: log.log_end, TX: 344})
    return log


def _rows(cli: CommandLine, topic: str, isolation: str = "read_uncommitted") -> list[Any]:
    line = ("consume", topic, "0", "--isolation", isolation, "--encoding", "base64")
    code = cli.run(*line, "--on-gap", "skip")
    assert code == (3 if topic == "orders" else 0), cli.err
    return [json.loads(row) for row in cli.lines()]


def _from_broker(isolation: str, end: int) -> list[tuple[int, str | None]]:
    """Offset and value of each record below `end`, as a consumer of the broker printed them."""
    lines = Path(TX_LOG / f"expected.{isolation}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["offset"], row["value"]) for row in rows if row["offset"] < end]


def _offsets_and_values(rows: list[Any]) -> list[tuple[int, str | None]]:
    return [(row["offset"], row["value"]) for row in rows]


def _findings(cli: CommandLine) -> list[str]:
    found = cli.json("verify", "--deep")
    assert found["complete"]
    return [finding["kind"] for finding in found["findings"]]


def test_every_record_is_read_and_nothing_is_damaged(earlier: CommandLine) -> None:
    assert _offsets_and_values(_rows(earlier, "tx")) == _from_broker("read_uncommitted", 261)
    found = _offsets_and_values(_rows(earlier, "tx", "read_committed"))
    assert found == _from_broker("read_committed", found[-1][0] + 1)
    assert len(found) > 100
    offsets = [row["offset"] for row in _rows(earlier, "orders")]
    assert offsets == [*range(30), *range(40, 60)]
    assert _findings(earlier) == ["acknowledged_gap"]


def test_sidecar_continues_the_archive(earlier: CommandLine) -> None:
    before = earlier.stored()
    log = _grow(earlier)

    assert earlier.run("backfill") == 0, earlier.err

    logs = {key for key in earlier.stored().keys() - before.keys() if key.endswith(".log")}
    assert {key.rpartition("/")[2] for key in logs} == {f"{60:020d}.log", f"{261:020d}.log"}
    assert all(earlier.stored()[key] == data for key, data in before.items() if ".log" in key)
    found = _offsets_and_values(_rows(earlier, "tx"))
    assert found == _from_broker("read_uncommitted", 274)
    assert _offsets_and_values(_rows(earlier, "orders")) == [
        (offset, b64encode(log.values[offset]).decode()) for offset in (*range(30), *range(40, 70))
    ]
    assert _findings(earlier) == ["acknowledged_gap"]


def test_gc_and_listing_read_it(earlier: CommandLine) -> None:
    earlier.configure({"retention": {"store": [{"topics": ["orders", "tx"], "age": "1d"}]}})
    before = earlier.stored()
    told = earlier.json("gc", "--dry-run")
    starts = {(row["topic"], row["new_start_offset"]) for row in told["partitions"]}
    assert starts == {("orders", 50), ("tx", 134)}
    assert earlier.run("ls") == 0, earlier.err
    assert earlier.stored() == before


def test_other_objects_are_read(earlier: CommandLine) -> None:
    store = open_plain(StorageEndpoint(f"file://{earlier.store}"))
    try:
        mark = read_watermark(store, LAYOUT.watermark_key(TX))
        assert mark is not None
        [chapter] = stored_chapters(store, LAYOUT, TX, mark.watermark.topic_id)
        rows = read_chapter(store, chapter)
        assert [(row.base_offset, row.next_offset) for row in rows] == [
            (0, 8),
            (8, 130),
            (130, 134),
            (134, 261),
        ]
        # A recorded start stays: the sidecar that comes later does not begin at 9.
        assert settle_start(store, LAYOUT, STARTED, Offset(9), None) == 5
        drill = read_drill(store, LAYOUT)
        assert drill is not None
        assert drill.succeeded
        index = read_index(store, LAYOUT)
        assert index is not None
        assert index.index.snapshots.keys() == STATE.keys()
        assert read_cluster_state(store, LAYOUT).topics == STATE[SnapshotKind.TOPICS]
    finally:
        store.close()
