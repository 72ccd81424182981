"""Plans with whole transactions, read from archives of several partitions."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sidetier.mirror.hydrate.consistent_cut import LONGEST_TRANSACTION_MS
from sidetier.mirror.hydrate.plan import HydratePlan, decode_plan, encode_plan
from sidetier.mirror.hydrate.survey import Cut, make_plan
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.made_archive import LAYOUT, MadeArchive, access_to
from tests.harness.record_batches import TransactionalLog

HOUR_MS = 3_600_000


@dataclass(slots=True)
class Partition:
    """A partition whose log is archived up to the last `roll`."""

    number: int
    archive: MadeArchive
    log: TransactionalLog = field(default_factory=TransactionalLog)
    base: int = 0
    rolled: int = 0

    @property
    def tp(self) -> TopicPartition:
        return self.archive.tp

    def roll(self) -> None:
        """Archive the records written since the last call as one segment."""
        data = b"".join(batch.encoded() for batch in self.log.batches[self.rolled :])
        self.archive.segment(self.base, data)
        self.archive.mark(self.base, self.log.next_offset)
        self.base, self.rolled = self.log.next_offset, len(self.log.batches)


def partitions_on(
    store: RemoteStorage, count: int = 3, layout: ArchiveLayout = LAYOUT
) -> list[Partition]:
    return [
        Partition(number, MadeArchive(store, layout, TopicPartition("orders", number)))
        for number in range(count)
    ]


def transaction(
    number: int, *partitions: Partition, producer: int = 7, version: int = 2, now: int | None = None
) -> None:
    """Commit transaction number `number` of the producer, with a record in each partition."""
    epoch = number if version == 2 else 0
    for partition in partitions:
        partition.log.write(producer, epoch=epoch)
    for item in partitions:
        item.log.mark(
            producer,
            commit=True,
            epoch=epoch + (version == 2),
            timestamp=number * 1000 if now is None else now,
        )


def planned(store: RemoteStorage, cut: Cut | None = None) -> HydratePlan:
    plan = make_plan(
        access_to(store), lambda _: True, cut or Cut(), {}, is_transaction_consistent=True
    )
    assert decode_plan(encode_plan(plan), "plan") == plan
    return plan


def ends(plan: HydratePlan) -> list[int]:
    return [partition.end for partition in plan.partitions]


def test_a_transaction_that_one_partition_lacks_is_left_out_of_all() -> None:
    store = FakeStorage()
    first, second, third = every = partitions_on(store)
    for number in range(3):
        transaction(number, *every)
    second.roll()  # ends after transaction 2
    transaction(3, *every)
    third.log.write(7, epoch=4)
    third.roll()  # ends in transaction 4
    transaction(4, first, second)
    first.roll()
    plan = planned(store)
    # Transaction 3 is committed in two partitions and may have records in the second.
    assert ends(plan) == [3 * 2 + 1, 3 * 2, 3 * 2 + 1]
    assert plan.transactions is not None
    assert [(end.partition, end.requested) for end in plan.transactions.lowered] == [
        ("orders-0", 5 * 2),
        ("orders-2", 4 * 2 + 1),
    ]
    assert {item.not_committed_in for item in plan.transactions.lowered} == {"orders-1"}
    assert plan.has_whole_transactions


def test_highest_producer_epoch_is_followed_by_another_producer_id() -> None:
    """The marker of the last transaction has epoch 32767; the next one has a new ID and epoch 0."""
    store = FakeStorage()
    first, second = every = partitions_on(store, 2)
    transaction(32_766, *every)
    transaction(0, first, producer=8, now=32_767_000)
    second.log.write(8, epoch=0)
    for item in every:
        item.roll()
    plan = planned(store)
    assert ends(plan) == [3, 3]
    assert plan.transactions is not None
    assert [end.not_committed_in for end in plan.transactions.lowered] == ["orders-1"]
    assert plan.has_whole_transactions


def test_a_cut_by_offset_reads_the_markers_above_it() -> None:
    store = FakeStorage()
    every = partitions_on(store, 2)
    for number in range(6):
        transaction(number, *every)
        for item in every:
            item.roll()
    plan = planned(store, Cut(offsets={every[1].tp: Offset(5)}))  # the marker of transaction 2
    assert ends(plan) == [5, 5]
    # The producer writes nothing more there, but an hour later the partition has another producer's
    # transaction.
    transaction(6, every[0])
    every[0].roll()
    transaction(0, every[1], producer=8, now=HOUR_MS)
    every[1].roll()
    assert ends(planned(store, Cut(offsets={every[0].tp: Offset(14)}))) == [14, 14]
    assert ends(planned(store, Cut(offsets={every[1].tp: Offset(12)}))) == [14, 12]


def test_archive_is_read_back_to_a_marker_that_is_old_enough() -> None:
    store = FakeStorage()
    first, second = every = partitions_on(store, 2)
    transaction(0, *every)
    second.log.write(7, epoch=1)  # open at the end of its archive
    for item in every:
        item.roll()
    transaction(1, first, now=HOUR_MS)
    first.roll()
    for number in range(3):  # others bury its marker
        transaction(number, first, producer=8, now=HOUR_MS + LONGEST_TRANSACTION_MS + number)
        first.roll()
    assert ends(planned(store)) == [3, 3]


def test_transactions_of_version_1_are_reported_and_lower_no_end() -> None:
    store = FakeStorage()
    first, second = every = partitions_on(store, 2)
    transaction(0, *every, version=1)
    second.roll()
    transaction(1, *every, version=1)
    first.roll()
    plan = planned(store)
    assert plan.transactions is not None
    assert ends(plan) == [4, 2]
    assert plan.transactions.version_1_producers == (7,)
    assert not plan.has_whole_transactions


def test_consistency_is_not_claimed_for_a_partition_the_producer_may_have_started_with() -> None:
    store = FakeStorage()
    first, second = partitions_on(store, 2)
    transaction(1, second, producer=8)
    second.roll()
    transaction(HOUR_MS // 1000, first)
    first.roll()
    plan = planned(store)
    assert plan.transactions is not None
    assert ends(plan) == [2, 2]
    assert plan.transactions.unproven_producers == (7,)
    assert not plan.has_whole_transactions


def test_consistency_is_not_claimed_for_records_in_gaps() -> None:
    store = FakeStorage()
    (only,) = partitions_on(store, 1)
    transaction(0, only)
    only.roll()
    assert planned(store).has_whole_transactions
    only.archive.gap(0, 1)
    assert not planned(store).has_whole_transactions


@pytest.mark.parametrize(
    ("version", "code", "said"),
    [
        (2, 0, "orders-0 ends at 3, not at 4: the archive does not show"),
        (1, 3, "Not guaranteed: producers 7 use transactions of version 1"),
    ],
)
def test_the_command_reports_lowered_ends_and_missing_guarantees(
    version: int, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = CommandLine(tmp_path, capsys)
    store = open_plain(StorageEndpoint(f"file://{command.store}"))
    first, second = every = partitions_on(store, 2, ArchiveLayout("prod-a", 3))
    transaction(0, *every, version=version)
    second.roll()
    transaction(1, *every, version=version)
    first.roll()
    store.close()
    line = ("hydrate", "plan", str(tmp_path / "plan.json"), "--transaction-consistent")
    assert command.run(*line, "--dry-run") == code
    assert said in command.out.replace("\n", " ")
    assert command.json(*line, code=code)["transactions"]["are_whole"] is (code == 0)
