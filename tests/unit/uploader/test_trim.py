"""Local retention deletes only what the store is proven to have."""

import io
import json
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from threading import Event

import pytest
from structlog.testing import capture_logs

from sidetier.archive.gc.collector import PartitionCollector
from sidetier.archive.gc.retention import Need, Retention
from sidetier.archive.objects.watermark import encode_watermark
from sidetier.config.retention import LocalRetentionConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import BrokerUnavailableError, StoreUnavailableError
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.names import FileKind
from sidetier.segments.notes import CHECKSUM_KEY, PLACE_KEY
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    ChecksumAlgorithm,
    PutOptions,
    StorageCapabilities,
)
from sidetier.telemetry.pages import partitions
from sidetier.uploader import engine
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.trim.archive_check import LedPartition, batch_problem
from sidetier.uploader.trim.decision import Held, Hindrance, Trim
from sidetier.uploader.trim.groups_behind import GroupBehind
from sidetier.uploader.trim.trimmer import Survey, Trimmer
from tests.harness.daemons import (
    LAYOUT,
    ConfigsByHand,
    LeadershipByHand,
    Site,
    key_of,
    place_of,
    stored_next,
    watermark_of,
)
from tests.harness.encryption import encrypting
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog, record_batch
from tests.harness.record_deletion import DeletingBroker
from tests.harness.waiting import wait_until

TP = TopicPartition("t", 0)
PLAIN = TopicConfig(only_deleted=True)


class Beside:
    """A trimmer beside a broker with one archived partition of four closed segments."""

    def __init__(self, site: Site, store: FakeStorage, log_dir: LogDir, **settings: object) -> None:
        self.store = store
        self.log_dir = log_dir
        self.log = log_dir.partitions.get(TP) or log_dir.create()
        self.bases = [int(base) for base in self.log.closed_segments(4)]
        log_dir.checkpoint_high_watermarks()
        site.settle()
        self.broker = DeletingBroker([log_dir])
        self.configs = ConfigsByHand({"t": PLAIN})
        place = place_of(store)
        local = LocalRetentionConfig.model_validate({"topics": ["t"], "bytes": 0, **settings})
        self.trimmer = Trimmer(
            local, self.broker, self.configs, lambda _: place, SYSTEM_CLOCK.wall, threads=1
        )

    def led(self, **changes: object) -> LedPartition:
        known = LedPartition(
            TP,
            str(self.log.path),
            LeaderEpoch(self.log.epoch),
            TOPIC_ID,
            archived_to=Offset(stored_next(self.store, TP) or 0),
        )
        return replace(known, **changes)  # type: ignore[arg-type]

    def survey(self, **changes: object) -> Survey:
        return self.trimmer.survey([self.led(**changes)])

    def run(self, **changes: object) -> Trim:
        """Make a pass, and return its only decision."""
        [trim] = self.survey(**changes).trims
        if not trim.size:
            return trim
        [(led, trim)] = self.trimmer.verify([(self.led(**changes), trim)])
        [trim] = self.trimmer.delete([(led, trim)])
        return trim

    @property
    def log_start(self) -> int:
        return int(self.log.bases()[0])

    def replace_watermark(self, **changes: object) -> None:
        watermark = watermark_of(self.store, TP)
        assert watermark is not None
        changed = replace(watermark, nonce="another", **changes)  # type: ignore[arg-type]
        self.store.put_object(LAYOUT.watermark_key(TP), BytesBody(encode_watermark(changed)))


@pytest.fixture
def beside(site: Site, store: FakeStorage, log_dir: LogDir) -> Beside:
    return Beside(site, store, log_dir)


def hindrance(trim: Trim) -> Hindrance | None:
    return None if trim.held is None else trim.held.hindrance


def test_verified_segments_are_deleted_in_one_request(beside: Beside) -> None:
    trim = beside.run()
    assert (trim.end, hindrance(trim), trim.excess) == (40, None, 0)
    assert trim.size == sum(len(beside.log.written[base]) for base in beside.bases)
    assert beside.broker.requests == [{TP: 40}]
    assert beside.log_start == 40
    assert not beside.survey().trims, "a second pass has nothing to do"


def test_active_segment_and_unarchived_segments_stay(beside: Beside) -> None:
    beside.log.closed_segment()
    beside.log.append(3)
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (40, Hindrance.ARCHIVE_BEHIND)
    assert beside.log_start == 40


def test_each_object_is_verified_once(beside: Beside) -> None:
    beside.broker.away = True
    assert hindrance(beside.run()) is Hindrance.REQUEST_FAILED
    heads = beside.store.count("head")
    assert hindrance(beside.run()) is Hindrance.REQUEST_FAILED
    assert beside.store.count("head") == heads, "the listing shows that they are still stored"
    beside.broker.away = False
    assert beside.run().end == 40


def known_watermark(beside: Beside) -> dict[str, object]:
    """What the sidecar knows of `offset.wm`."""
    key = LAYOUT.watermark_key(TP)
    etag = beside.store.head_object(key).etag
    return {"etag": etag, "watermark": watermark_of(beside.store, TP)}


def test_known_watermark_is_not_read_again(beside: Beside) -> None:
    known, key = known_watermark(beside), LAYOUT.watermark_key(TP)
    gets, heads, lists = (
        beside.store.count("get", key),
        beside.store.count("head", key),
        beside.store.count("list"),
    )
    assert beside.run(**known).end == 40
    assert (beside.store.count("get", key), beside.store.count("head", key)) == (gets, heads)
    assert beside.store.count("list") == lists + 1


def test_watermark_behind_the_first_page_of_the_listing_is_asked_for(beside: Beside) -> None:
    known, key = known_watermark(beside), LAYOUT.watermark_key(TP)
    heads = beside.store.count("head", key)
    for number in range(LISTED_AT_ONCE):
        beside.store.put_object(f"{LAYOUT.partition_prefix(TP)}m{number:04d}", BytesBody(b""))
    assert beside.run(**known).end == 40
    assert beside.store.count("head", key) == heads + 1


def test_object_of_another_name_between_segments_ends_no_listing(beside: Beside) -> None:
    key = key_of(TP, 20, FileKind.LOG).removesuffix(".log")
    beside.store.put_object(f"{key}.copy", BytesBody(b""))
    assert beside.run().end == 40


def test_log_that_is_replaced_after_its_check_is_not_trimmed(beside: Beside) -> None:
    known = known_watermark(beside)
    beside.broker.away = True
    assert hindrance(beside.run(**known)) is Hindrance.REQUEST_FAILED
    beside.broker.away = False
    put_again(beside)
    trim = beside.run(**known)
    assert (trim.end, hindrance(trim)) == (20, Hindrance.OBJECT_UNVERIFIED)
    assert trim.held is not None
    assert "replaced" in trim.held.text
    again = beside.run(**known)
    assert again.held is None or "replaced" not in again.held.text, "it is checked anew"


def gone(kind: FileKind, base: int = 20) -> Callable[[Beside], None]:
    return lambda beside: beside.store.delete_object(key_of(TP, base, kind))


def put_again(beside: Beside) -> None:
    """Replace a `.log` by other bytes with the metadata of the upload."""
    key = key_of(TP, 20)
    stored = beside.store.get_object(key)
    data = bytes([*stored.data[:-1], stored.data[-1] ^ 1])
    beside.store.put_object(key, BytesBody(data), PutOptions(metadata=stored.head.metadata))


def without_metadata(beside: Beside) -> None:
    """Replace a `.log` as Pinterest's uploader does."""
    key = key_of(TP, 20)
    beside.store.put_object(key, BytesBody(beside.store.get_object(key).data))


def unnamed(beside: Beside) -> None:
    """Let `_metadata` no longer name a segment."""
    key = LAYOUT.metadata_key(TP)
    data = beside.store.get_object(key).data
    entries = data.split(b"{")
    kept = [entry for entry in entries if b'"baseOffset": 20' not in entry.replace(b":20", b": 20")]
    assert len(kept) == len(entries) - 1
    beside.store.put_object(key, BytesBody(b"{".join(kept)))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (gone(FileKind.LOG), Hindrance.OBJECT_MISSING),
        (gone(FileKind.INDEX), Hindrance.OBJECT_MISSING),
        (put_again, Hindrance.OBJECT_UNVERIFIED),
        (without_metadata, Hindrance.OBJECT_UNVERIFIED),
        (unnamed, Hindrance.ARCHIVE_BEHIND),
    ],
)
def test_trim_stops_before_a_segment_that_is_not_proven(
    beside: Beside, change: Callable[[Beside], None], expected: Hindrance
) -> None:
    change(beside)
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, expected)
    assert beside.log_start == 20


# -- objects that were replaced by another program, which keeps the metadata


def other_bytes(store: FakeStorage) -> None:
    """Other bytes of the same size."""
    data = store.get_object(key_of(TP, 20)).data
    store.overwrite(key_of(TP, 20), bytes([*data[:-1], data[-1] ^ 1]))


def other_first_batch(store: FakeStorage) -> None:
    """Another first batch, with a new checksum in the metadata."""
    stored = store.get_object(key_of(TP, 20))
    data = bytes([*stored.data[:17], stored.data[17] ^ 1, *stored.data[18:]])
    notes = {**stored.head.metadata, CHECKSUM_KEY: f"{crc64nvme(data):016x}"}
    store.put_object(key_of(TP, 20), BytesBody(data), PutOptions(metadata=notes))


def exchange(store: FakeStorage, one: str, other: str) -> None:
    store.copy_object(one, "kept")
    store.copy_object(other, one)
    store.copy_object("kept", other)


def exchanged(store: FakeStorage) -> None:
    """Two segments, exchanged with their metadata."""
    exchange(store, key_of(TP, 20), key_of(TP, 30))


def exchanged_bytes(store: FakeStorage) -> None:
    """Two segments of the same size, exchanged without their metadata."""
    two, three = (store.get_object(key_of(TP, base)).data for base in (20, 30))
    assert len(two) == len(three)
    store.overwrite(key_of(TP, 20), three)
    store.overwrite(key_of(TP, 30), two)


def exchanged_with_another_partition(store: FakeStorage) -> None:
    """A segment of the same offsets, and of the same topic."""
    exchange(store, key_of(TP, 20), key_of(TopicPartition("t", 1), 20))


def archived_elsewhere(store: FakeStorage) -> None:
    """The metadata names another place; the first batch is not looked at."""
    stored = store.get_object(key_of(TP, 20))
    notes = {**stored.head.metadata, PLACE_KEY: "t-1/00000000000000000020"}
    store.put_object(key_of(TP, 20), BytesBody(stored.data), PutOptions(metadata=notes))


@pytest.mark.parametrize("own", [True, False], ids=["own checksum", "no own checksum"])
@pytest.mark.parametrize(
    "damage",
    [
        other_bytes,
        other_first_batch,
        exchanged,
        exchanged_bytes,
        exchanged_with_another_partition,
        archived_elsewhere,
    ],
)
def test_trim_stops_before_a_replaced_object(
    log_dir: LogDir, damage: Callable[[FakeStorage], None], *, own: bool
) -> None:
    checksum = ChecksumAlgorithm.CRC64NVME if own else None
    store = FakeStorage(
        capabilities=StorageCapabilities(conditional_writes=True, checksum=checksum)
    )
    log_dir.create(number=1).closed_segments(4)
    beside = Beside(Site([log_dir], store), store, log_dir)
    damage(store)
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.OBJECT_UNVERIFIED)
    assert beside.log_start == 20


@pytest.mark.parametrize("own", [True, False], ids=["own checksum", "no own checksum"])
@pytest.mark.parametrize("length", [None, 300], ids=["changed", "cut"])
def test_trim_stops_before_a_damaged_encrypted_object(
    log_dir: LogDir, length: int | None, *, own: bool
) -> None:
    """The intact segments before it are trimmed all the same: the disk must not fill up."""
    checksum = ChecksumAlgorithm.CRC64NVME if own else None
    store = FakeStorage(
        capabilities=StorageCapabilities(conditional_writes=True, checksum=checksum)
    )
    beside = Beside(Site([log_dir], encrypting(store)), store, log_dir)
    place = place_of(encrypting(store))
    beside.trimmer = replace(beside.trimmer, places=lambda _: place)
    data = store.get_object(key_of(TP, 20)).data
    store.overwrite(key_of(TP, 20), bytes([*data[:-1], data[-1] ^ 1])[:length])
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.OBJECT_UNVERIFIED)
    assert trim.held is not None
    assert key_of(TP, 20) in trim.held.text


def test_bytes_are_read_only_where_the_store_has_no_checksum_of_its_own(beside: Beside) -> None:
    beside.store.requests.clear()
    assert beside.run().end == 40
    read = [request for request in beside.store.requests if request.operation == "stream"]
    assert [request.end for request in read] == [HEADER_BYTES] * 4


@pytest.mark.parametrize(("seconds", "end"), [(61.0, 0), (59.0, 40)])
def test_check_that_took_long_is_made_again_before_the_deletion(
    log_dir: LogDir, seconds: float, end: int
) -> None:
    """While the bytes of the second partition are read, the first one loses an object."""
    store = FakeStorage(capabilities=StorageCapabilities(conditional_writes=True, checksum=None))
    other = log_dir.create(number=1)
    other.closed_segments(4)
    beside = Beside(Site([log_dir], store), store, log_dir)
    now = SYSTEM_CLOCK.wall()
    beside.trimmer = replace(beside.trimmer, wall=lambda: now)
    first, last = (
        beside.led(),
        replace(beside.led(), topic_partition=other.tp, directory=str(other.path)),
    )

    def lose() -> None:
        nonlocal now
        now += seconds
        store.delete_object(key_of(TP, 0))

    store.race("stream", lose, key=key_of(other.tp, 30))
    store.requests.clear()
    trims = beside.trimmer.survey([first, last]).trims
    verified = beside.trimmer.verify(list(zip([first, last], trims, strict=True)))
    assert [trim.end for _, trim in verified] == [end, 40]
    read = [request.key for request in store.requests if request.operation == "stream"]
    assert len(read) == len(set(read)) == 8, "each object is read once"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"base": 12}, None),
        ({"base": 9}, "its first batch has offset 9"),
        ({"base": 20}, "its first batch has offset 20"),
        ({"epoch": 4}, "its first batch is of leader epoch 4, and the log has 3"),
    ],
)
def test_first_batch_has_to_fit_key_and_history(
    change: dict[str, int], problem: str | None
) -> None:
    """It is all that is compared if the log's segments begin at other offsets."""
    first = record_batch(change.get("base", 10), [b"v"], epoch=change.get("epoch", 3))
    local = EpochHistory(((LeaderEpoch(3), Offset(10)),))
    found = batch_problem(first[:HEADER_BYTES], OffsetRange(Offset(10), Offset(20)), local)
    assert found is None if problem is None else str(found).startswith(problem)
    assert batch_problem(first[:60], OffsetRange(Offset(10), Offset(20)), local) is not None


# -- transactions


def open_at(beside: Beside, base: int, *first_offsets: int) -> None:
    """Let the broker's snapshot at a segment's base offset have open transactions."""
    producers = (struct.pack(">qhiqiqiq", 7, 0, 0, 0, 0, 0, 0, first) for first in first_offsets)
    beside.log.file(base, FileKind.SNAPSHOT).write_bytes(encode_snapshot(producers))


def test_transaction_that_is_open_at_the_archive_end_is_not_split(beside: Beside) -> None:
    open_at(beside, 40, 25, -1)
    [trim] = beside.survey().trims
    assert (trim.end, hindrance(trim)) == (20, Hindrance.TRANSACTION_OPEN)
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.TRANSACTION_OPEN)
    assert trim.held is not None
    assert "producer 7 began at offset 25" in trim.held.text
    open_at(beside, 40)
    open_at(beside, 30, 25)
    assert beside.run().end == 40, "it was decided between 30 and 40"


def test_archive_end_of_the_check_counts_for_transactions(beside: Beside) -> None:
    """The archive has moved back since the survey, to where a transaction is open."""
    open_at(beside, 30, 15)
    beside.replace_watermark(base_offset=20, next_offset=Offset(30))
    trim = beside.run(archived_to=Offset(40))
    assert (trim.end, hindrance(trim)) == (10, Hindrance.TRANSACTION_OPEN)


def test_missing_snapshots_leave_transactions_unknown(beside: Beside) -> None:
    beside.log.file(40, FileKind.SNAPSHOT).unlink()
    beside.log.file(30, FileKind.SNAPSHOT).write_bytes(b"damaged")
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.TRANSACTIONS_UNKNOWN)
    for base in (20, 30):
        beside.log.file(base, FileKind.SNAPSHOT).unlink()
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.TRANSACTIONS_UNKNOWN)
    assert trim.size == 0


def test_first_segment_is_gone(beside: Beside) -> None:
    gone(FileKind.LOG, 0)(beside)
    assert hindrance(beside.run()) is Hindrance.OBJECT_MISSING
    assert not beside.broker.requests


@pytest.mark.parametrize(
    ("watermark", "known", "expected"),
    [
        ({"pending": "_sidetier/c/quarantine/x/"}, {}, Hindrance.ARCHIVE_CHANGED),
        ({"next_offset": None}, {}, Hindrance.ARCHIVE_CHANGED),
        ({"topic_id": "AAAAAAAAAAAAAAAAAAAAAg"}, {}, Hindrance.ARCHIVE_CHANGED),
        ({"leader_epoch": LeaderEpoch(7)}, {}, Hindrance.ARCHIVE_CHANGED),
        ({}, {"etag": "of an earlier version"}, Hindrance.ARCHIVE_CHANGED),
        ({}, {"topic_id": None}, Hindrance.TOPIC_ID_UNKNOWN),
        ({"epoch_history": "00000000"}, {}, Hindrance.EPOCHS_DIFFER),
    ],
)
def test_stale_view_or_foreign_archive_is_not_trimmed(
    beside: Beside, watermark: dict[str, object], known: dict[str, object], expected: Hindrance
) -> None:
    beside.replace_watermark(**watermark)
    trim = beside.run(archived_to=Offset(40), **known)
    assert (trim.end, hindrance(trim)) == (0, expected)
    assert not beside.broker.requests


def test_start_that_gc_has_moved_is_no_stale_view(beside: Beside) -> None:
    """The sidecar has not committed since, so it still knows the version before."""
    known = known_watermark(beside)
    beside.log.unlink(0)
    PartitionCollector(
        beside.store, LAYOUT, TP, Retention(age=1.0), needs=[Need(Offset(10), "test", TOPIC_ID)]
    ).collect()
    assert watermark_of(beside.store, TP).start_offset == 10  # type: ignore[union-attr]
    trim = beside.run(**known)
    assert (trim.end, hindrance(trim)) == (40, None)


def test_known_watermark_with_another_end_is_a_stale_view(beside: Beside) -> None:
    known = {"etag": "of an earlier version", "watermark": watermark_of(beside.store, TP)}
    beside.replace_watermark(base_offset=10, next_offset=Offset(20))
    trim = beside.run(archived_to=Offset(40), **known)
    assert (trim.end, hindrance(trim)) == (0, Hindrance.ARCHIVE_CHANGED)


def test_log_that_begins_below_the_start_of_the_archive_says_so(beside: Beside) -> None:
    PartitionCollector(
        beside.store, LAYOUT, TP, Retention(age=1.0), needs=[Need(Offset(20), "test", TOPIC_ID)]
    ).collect()
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (0, Hindrance.ARCHIVE_BEHIND)
    assert trim.held is not None
    assert "the log begins at offset 0, and the archive at 20" in trim.held.text
    assert "sidetier gc" in trim.held.text


def test_moved_back_watermark_counts_and_not_the_known_one(beside: Beside) -> None:
    beside.replace_watermark(base_offset=10, next_offset=Offset(20))
    trim = beside.run(archived_to=Offset(40))
    assert (trim.end, hindrance(trim)) == (20, Hindrance.ARCHIVE_BEHIND)


@pytest.mark.parametrize("is_known", [False, True])
def test_watermark_that_is_deleted_or_written_meanwhile(beside: Beside, *, is_known: bool) -> None:
    key = LAYOUT.watermark_key(TP)
    known = known_watermark(beside) if is_known else {}
    beside.store.race("head", beside.replace_watermark, key=key_of(TP, 0), times=None)
    assert hindrance(beside.run(**known)) is Hindrance.ARCHIVE_CHANGED
    beside.store.heal()
    beside.store.delete_object(key)
    assert hindrance(beside.run(archived_to=Offset(40), **known)) is Hindrance.ARCHIVE_CHANGED
    assert not beside.broker.requests


@pytest.mark.parametrize("changes", [{}, {"epoch_history": None}], ids=["checksum", "no checksum"])
def test_log_with_another_history_is_not_trimmed(
    beside: Beside, changes: dict[str, object]
) -> None:
    """After an unclean election, another epoch has written offsets that are archived.

    Without a checksum of the epochs in `offset.wm`, the stored epochs are read and compared.
    """
    beside.replace_watermark(**changes)
    beside.log._epochs = [(0, 0), (3, 25)]
    beside.log._write_epochs()
    beside.log.epoch = 3
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (0, Hindrance.EPOCHS_DIFFER)
    assert not beside.broker.requests


def test_log_of_other_size_is_not_trimmed(beside: Beside) -> None:
    with beside.log.file(20).open("ab") as file:
        file.write(b"more")
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.OBJECT_UNVERIFIED)


def test_leader_moves_between_check_and_request(beside: Beside) -> None:
    beside.broker.before_delete = lambda: beside.broker.epochs.update({TP: 1})
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (0, Hindrance.LEADERSHIP_UNCONFIRMED)
    assert beside.log_start == 0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TopicConfig(compacted=True), Hindrance.TOPIC_REFUSED),
        (TopicConfig(only_deleted=True, native_tiering=True), Hindrance.TOPIC_REFUSED),
        (None, Hindrance.TOPIC_CONFIG_UNKNOWN),
    ],
)
def test_refused_topics(beside: Beside, config: TopicConfig | None, expected: Hindrance) -> None:
    beside.configs.answers["t"] = config
    assert hindrance(beside.run()) is expected
    beside.configs.away = True
    assert hindrance(beside.run()) is Hindrance.TOPIC_CONFIG_UNKNOWN
    assert not beside.broker.requests


def test_store_that_does_not_answer(beside: Beside) -> None:
    beside.store.fail(None, StoreUnavailableError("away"), times=None)
    assert hindrance(beside.run(archived_to=Offset(40))) is Hindrance.REQUEST_FAILED
    assert not beside.broker.requests


def test_groups_that_fall_behind_are_listed(beside: Beside) -> None:
    members = (GroupMember("billing", "10.0.0.7"),)
    beside.broker.committed = {"slow": {TP: Offset(15)}, "fast": {TP: Offset(40)}}
    beside.broker.members_of = {"slow": members, "fast": members}
    assert not beside.survey().groups_behind, "the daemon asks for protected groups only"
    beside.trimmer = replace(beside.trimmer, all_groups=True)
    survey = beside.survey()
    assert survey.groups_behind == (GroupBehind("slow", TP, Offset(15), Offset(40)),)
    assert survey.members == {"slow": members}, "only these groups are described"
    assert beside.run().end == 40, "a group that is not protected holds nothing back"


def test_protected_group_holds_the_log_start(
    site: Site, store: FakeStorage, log_dir: LogDir
) -> None:
    beside = Beside(site, store, log_dir, protect_groups=["slow.*"])
    beside.broker.committed = {"slow-1": {TP: Offset(25)}, "other": {TP: Offset(1)}}
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.GROUP_BEHIND)
    beside.broker.groups_error = BrokerUnavailableError("no coordinator")
    trim = beside.run()
    assert (trim.end, hindrance(trim)) == (20, Hindrance.GROUPS_UNKNOWN)
    assert trim.size == 0


def test_unknown_offsets_hold_nothing_without_protected_groups(beside: Beside) -> None:
    beside.broker.groups_error = BrokerUnavailableError("no coordinator")
    assert not beside.survey().groups_problems
    beside.trimmer = replace(beside.trimmer, all_groups=True)
    assert beside.survey().groups_problems == (
        "committed offsets of consumer groups: no coordinator",
    )
    assert beside.run().end == 40


def test_unread_group_holds_the_log_start_only_if_it_is_protected(
    site: Site, store: FakeStorage, log_dir: LogDir
) -> None:
    beside = Beside(site, store, log_dir, protect_groups=["slow"])
    beside.trimmer = replace(beside.trimmer, all_groups=True)
    beside.broker.unread = {"other": "refused"}
    beside.broker.incomplete = "some are hidden"
    survey = beside.survey()
    assert survey.groups_problems == (
        "committed offsets of consumer groups other: refused",
        "consumer groups: some are hidden",
    )
    assert [trim.end for trim in survey.trims] == [40]
    beside.broker.unread["slow"] = "refused, too"
    [trim] = beside.survey().trims
    assert trim.held == Held(
        Hindrance.GROUPS_UNKNOWN, "committed offsets of consumer groups slow: refused, too"
    )


def test_log_start_within_the_first_segment(
    site: Site, store: FakeStorage, log_dir: LogDir, log: PartitionLog
) -> None:
    """The archive begins at the log start: records below it were deleted by an operator."""
    log.closed_segments(2)
    log.start_at(5)
    beside = Beside(site, store, log_dir)
    store.delete_object(key_of(TP, 0))
    names = b'"baseOffset"'
    assert names in store.get_object(LAYOUT.metadata_key(TP)).data
    checkpoint = log_dir.path / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 10\n")
    assert beside.run().end == 60


# -- the daemon


@pytest.fixture
def quick_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.02)


def daemon_site(site: Site, log_dir: LogDir, **settings: object) -> DeletingBroker:
    broker = DeletingBroker([log_dir])
    site.topic_configs = ConfigsByHand({"t": PLAIN, "other": PLAIN})
    site.record_deleter = broker
    site.local_retention = LocalRetentionConfig.model_validate(
        {"topics": ["t"], "bytes": 0, "interval": 1, **settings}
    )
    return broker


@pytest.mark.usefixtures("quick_passes")
def test_daemon_trims_what_it_has_archived(site: Site, log_dir: LogDir, log: PartitionLog) -> None:
    other = log_dir.create("other")
    for one in (log, other):
        one.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    broker = daemon_site(site, log_dir)
    with capture_logs() as events, site.running() as running:
        running.wait(lambda: log.bases()[0] == 30, "the trim")
        counter = "sidetier_local_retention_trimmed_bytes_total"
        running.wait(lambda: site.registry.get_sample_value(counter, {"topic": "t"}), "the count")
    assert len(other.bases()) == 4, "the topic has not opted in"
    assert broker.requests == [{TP: 30}]
    [trimmed] = [event for event in events if event["event"] == "local_retention.trimmed"]
    assert (trimmed["log_start_offset"], trimmed["bytes"]) == (
        30,
        sum(len(log.written[base]) for base in (0, 10, 20)),
    )


class EndlessStream(io.BytesIO):
    """The bytes of an object that take longer than any grace period."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = Event()

    def read(self, size: int | None = -1, /) -> bytes:
        self.begun.set()
        return bytes(min(size or 0, 1024))


@pytest.mark.usefixtures("quick_passes")
def test_daemon_that_stops_does_not_read_on(log_dir: LogDir, log: PartitionLog) -> None:
    """The process would wait for the threads that read the bytes of a store without checksums."""
    store = FakeStorage(capabilities=StorageCapabilities(conditional_writes=True, checksum=None))
    site = Site([log_dir], store)
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    broker = daemon_site(site, log_dir)
    stream = EndlessStream()
    store.get_object_input_stream = lambda *_, **__: stream  # type: ignore[method-assign]
    with site.running() as running:
        running.wait(stream.begun.is_set, "the check")
        assert not stream.closed
    wait_until(lambda: stream.closed, 10, "the end of the check")
    assert broker.requests == []


@pytest.mark.usefixtures("quick_passes")
def test_status_shows_a_trim_until_the_broker_has_deleted_the_files(
    site: Site, log_dir: LogDir, log: PartitionLog
) -> None:
    """And does not count it again."""
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    broker = daemon_site(site, log_dir)
    broker.deletes_files = False
    with site.running() as running:

        def trimmed_to() -> Offset | None:
            row = running.status(TP)
            return None if row is None else row.trimmed_to

        running.wait(lambda: trimmed_to() == 30, "the trim")
        log.closed_segments(1)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: trimmed_to() == 40, "the next trim")
        assert broker.requests == [{TP: 30}, {TP: 40}]
        size = sum(len(log.written[base]) for base in (0, 10, 20, 30))
        counter = "sidetier_local_retention_trimmed_bytes_total"
        assert site.registry.get_sample_value(counter, {"topic": "t"}) == size
        for base in (0, 10, 20, 30):
            log.stage(base)
            log.unlink(base)
        running.wait(lambda: trimmed_to() is None, "the deletion")


@pytest.mark.usefixtures("quick_passes")
def test_daemon_shows_why_nothing_is_trimmed(
    site: Site, log_dir: LogDir, log: PartitionLog
) -> None:
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    broker = daemon_site(site, log_dir)
    broker.epochs[TP] = 9
    with site.running() as running:
        running.wait(lambda: running.daemon.status.snapshot().local_retention, "the report")
        snapshot = running.daemon.status.snapshot()
        [excess] = snapshot.local_retention
    assert (excess.topic, excess.reason) == ("t", "leadership_unconfirmed")
    shown = json.loads(partitions(snapshot, None).body)["local_retention"]
    assert shown == [{"topic": "t", "reason": excess.reason, "size_bytes": excess.size_bytes}]
    assert excess.size_bytes == sum(len(log.written[base]) for base in (0, 10, 20))
    assert log.bases()[0] == 0


@pytest.mark.usefixtures("quick_passes")
def test_leader_moves_while_the_archive_is_verified(
    site: Site, store: FakeStorage, log_dir: LogDir, log: PartitionLog
) -> None:
    log.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    broker = daemon_site(site, log_dir)
    site.leadership = leadership = LeadershipByHand({TP: 0})
    held = ExitStack()
    held.enter_context(store.hold("head", key_of(TP, 10)))
    with held, site.running() as running:
        running.wait(lambda: store.count("head", key_of(TP, 10)), "the check")
        leadership.lose(TP)
        running.wait(lambda: running.status(TP) is None, "the loss")
        held.close()
        running.wait(lambda: running.daemon.status.snapshot().local_retention, "the report")
        [excess] = running.daemon.status.snapshot().local_retention
    assert excess.reason == "leadership_unconfirmed"
    assert not broker.requests


@pytest.mark.usefixtures("quick_passes")
def test_failing_partition_does_not_affect_the_others(
    site: Site, store: FakeStorage, log_dir: LogDir, log: PartitionLog
) -> None:
    logs = [log, *(log_dir.create(number=number) for number in (1, 2))]
    for one in logs:
        one.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    daemon_site(site, log_dir)
    site.settle()
    broken = TopicPartition("t", 1)
    store.fail("get", KeyError("unexpected"), key=LAYOUT.metadata_key(broken), times=None)
    with site.running() as running:
        running.wait(lambda: logs[0].bases()[0] == logs[2].bases()[0] == 20, "the others")
    assert logs[1].bases()[0] == 0


@pytest.mark.usefixtures("quick_passes")
def test_unexpected_error_of_a_pass_is_held_and_the_daemon_lives(
    site: Site, log_dir: LogDir, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    daemon_site(site, log_dir)

    def fails(*_: object) -> None:
        raise KeyError("unexpected")

    monkeypatch.setattr(Trimmer, "survey", fails)
    with site.running() as running:
        running.wait(lambda: running.daemon.status.snapshot().held_errors, "the error")
        [held] = running.daemon.status.snapshot().held_errors
    assert held.subject == "local retention"
    assert log.bases()[0] == 0


def test_daemon_without_the_setting_has_no_thread_for_it(site: Site, log_dir: LogDir) -> None:
    site.record_deleter = DeletingBroker([log_dir])
    daemon = site.daemon()
    assert "local-retention" not in daemon._engine._pools
    assert daemon._engine._local_retention is None
