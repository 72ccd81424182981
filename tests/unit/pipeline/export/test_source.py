"""Archives and brokers together: the range of a run, and the source of its records."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from sidetier.archive.objects.layout import write_or_check_note
from sidetier.config.model import BrokerConfig
from sidetier.pipeline.errors import MissingRecordsError, NoSuchTopicError, UndecidedRecordsError
from sidetier.pipeline.export.epoch_history import Position, epoch_history_of
from sidetier.pipeline.export.errors import BrokerBehindError, OtherTopicError, StillOnBrokerError
from sidetier.pipeline.export.held_back import HeldBack, waiting_for_transactions
from sidetier.pipeline.export.run import next_chunk
from sidetier.pipeline.export.sinks.files.manifest import Manifest, Span
from sidetier.pipeline.export.sinks.files.manifest_changes import begun
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.tables.commit_metadata import Progress
from sidetier.pipeline.export.sinks.tables.frames import Rows
from sidetier.pipeline.export.sinks.tables.run import TableRun, TableTerms, offsets_after
from sidetier.pipeline.export.source import (
    ArchiveSource,
    RangeBound,
    RequestedRange,
    TailedSource,
)
from sidetier.pipeline.export.state import Tail
from sidetier.pipeline.export.tail.logs import BrokerLog, BrokerTopic
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import AtOffsets, Edge, ReadRequest, Topics
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.exported_files import CLUSTER, files_job, manifest_in, offsets_in, run_once
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.record_batches import TransactionalLog
from tests.unit.pipeline.export.tables.fakes import FakeTable

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
COMMITTED = IsolationLevel.READ_COMMITTED


@dataclass
class Brokers:
    """The state of the cluster; `meanwhile` happens once it was queried."""

    logs: dict[int, tuple[int, int]]
    topic_id: str | None = "id-1"
    cluster_id: str | None = "kafka-1"
    meanwhile: list[MadeArchive] = field(default_factory=list)
    asked: int = 0
    epoch: LeaderEpoch | None = None
    committed: dict[int, int] = field(default_factory=dict)
    """High watermarks above the last stable offset."""

    def __call__(
        self, broker: BrokerConfig, topic: str, isolation: IsolationLevel
    ) -> BrokerTopic | None:
        assert (broker, topic, isolation) == (BrokerConfig(), "orders", COMMITTED)
        self.asked += 1
        for archive in self.meanwhile:
            archive.segments(20, 40)
        self.meanwhile = []
        if not self.logs:
            return None
        logs = {
            one: BrokerLog(
                Offset(start), Offset(end), Offset(self.committed.get(one, end)), self.epoch
            )
            for one, (start, end) in self.logs.items()
        }
        return BrokerTopic(self.topic_id, logs, self.cluster_id)


@pytest.fixture
def archive() -> MadeArchive:
    """An archive of orders-0 with the offsets 0 to 19."""
    made = MadeArchive(tp=A)
    made.segments(0, 10, 20)
    return made


@pytest.fixture
def planner(archive: MadeArchive) -> Iterator[Planner]:
    with Planner(access_to(archive.store), threads=1) as planner:
        yield planner


def tailed(planner: Planner, brokers: Brokers, **request: object) -> TailedSource:
    logs = TopicLogs(planner, BrokerConfig(), ("orders",), brokers)
    return TailedSource(archived(planner, **request), logs)


def archived(planner: Planner, **request: object) -> ArchiveSource:
    asked = ReadRequest(Topics(("orders",)), isolation=COMMITTED, **request)  # type: ignore[arg-type]
    return ArchiveSource(CLUSTER, planner, asked)


def at(*offsets: int) -> dict[TopicPartition, Offset]:
    """Offsets of orders-0, orders-1, and so on."""
    return {TopicPartition("orders", one): Offset(offset) for one, offset in enumerate(offsets)}


def span(first: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(first), Offset(until))


def read(plan: Plan) -> tuple[list[OffsetRange], list[tuple[TopicPartition, OffsetRange]]]:
    """Offsets of orders-0 in the archive's splits, and offsets of both partitions on the
    brokers.
    """
    return [one.range for one in plan.splits], [(one.tp, one.range) for one in plan.on_broker]


def test_an_export_goes_on_behind_the_archive(planner: Planner) -> None:
    source = tailed(planner, Brokers({0: (5, 50), 1: (3, 9)}))
    ranges = source.available(at(15))
    assert ranges == {A: span(15, 50), B: span(3, 9)}
    assert source.tail(ranges) == Tail(at(50, 9), {"orders": "id-1"})
    assert source.tail({A: span(15, 20)}) == Tail({}, {"orders": "id-1"})
    plan = source.plan(ranges)
    assert read(plan) == ([span(15, 20)], [(A, span(20, 50)), (B, span(3, 9))])
    assert plan.ranges == ranges
    assert source.available(at(50, 9)) == {A: span(50, 50), B: span(9, 9)}


def test_offsets_on_the_brokers_only_have_no_bytes(archive: MadeArchive, planner: Planner) -> None:
    """They come after all archived offsets of their partition, regardless of the byte limit."""
    brokers = Brokers({0: (5, 50), 1: (3, 9)})
    source = tailed(planner, brokers)
    ranges = source.available(at(0, 3))
    archive.segments(20, 40)  # seen later: in this snapshot the brokers have it
    for most, until in ((1, 10), (400, 10), (10_000, 50)):
        assert source.within(ranges, most) == {A: span(0, until), B: span(3, 9)}
    behind = {A: span(20, 50)}
    assert source.within(behind, 1) == behind


def test_offsets_planned_on_the_broker_are_read_from_the_archive_once_archived(
    archive: MadeArchive, planner: Planner
) -> None:
    first = tailed(planner, Brokers({0: (5, 50)}))
    assert read(first.plan({A: span(0, 50)}, at(50)))[1] == [(A, span(20, 50))]
    archive.segments(20, 40)
    later = tailed(planner, Brokers({0: (30, 90)}))
    plan = later.plan({A: span(0, 50)}, at(50))
    assert read(plan) == ([span(0, 40)], [(A, span(40, 50))])


def test_run_planned_with_the_brokers_waits_without_them(
    archive: MadeArchive, planner: Planner
) -> None:
    source = archived(planner)
    ranges = {A: span(0, 40)}
    with pytest.raises(StillOnBrokerError, match="up to offset 40, and has not ended; the records"):
        source.plan(ranges, at(40), fail_on_data_loss=False)
    assert source.available(at(40), at(40)) == {A: span(40, 40)}
    archive.segments(20, 40)
    assert read(source.plan(ranges, at(40))) == ([span(0, 40)], [])


def test_offsets_the_broker_lost_after_planning_are_never_skipped(
    planner: Planner,
) -> None:
    source = tailed(planner, Brokers({0: (5, 30)}))
    with pytest.raises(MissingRecordsError, match=r"offsets \[30, 50\) \(the broker's log ends at"):
        source.plan({A: span(0, 50)}, at(50), fail_on_data_loss=False)


def test_offsets_archived_between_the_two_queries_are_no_gap(
    archive: MadeArchive, planner: Planner
) -> None:
    brokers = Brokers({0: (35, 60)}, meanwhile=[archive])
    source = tailed(planner, brokers)
    assert source.available({}) == {A: span(0, 60)}
    plan = source.plan({A: span(0, 60)})
    assert read(plan) == ([span(0, 40)], [(A, span(40, 60))])
    assert brokers.asked == 2


def test_gap_is_an_error_or_counted(planner: Planner) -> None:
    ranges = {A: span(0, 60)}
    with pytest.raises(MissingRecordsError, match=r"orders, partition 0, offsets \[20, 35\)"):
        tailed(planner, Brokers({0: (35, 60)})).plan(ranges)
    tolerant = tailed(planner, Brokers({0: (35, 60)}))
    plan = tolerant.plan(ranges, fail_on_data_loss=False)
    assert [one.range for one in plan.missing] == [span(20, 35)]
    assert read(plan) == ([span(0, 20)], [(A, span(35, 60))])


def test_topic_in_neither_archive_nor_cluster_is_an_error(
    planner: Planner, archive: MadeArchive
) -> None:
    source, said = tailed(planner, Brokers({})), list[str]()
    source.logs.say = said.append
    assert source.available({}) == {A: span(0, 20)}
    assert said == ["orders: the brokers have no topic of this name: only the archive is read"]
    for key in list(archive.store.contents()):  # type: ignore[attr-defined]
        archive.store.delete_object(key)
    with pytest.raises(NoSuchTopicError, match="nothing of it is stored"):
        tailed(planner, Brokers({})).available({})


@pytest.mark.parametrize(
    ("noted", "told"), [("kafka-1", "kafka-1"), (None, "kafka-1"), ("kafka-1", None)]
)
def test_brokers_of_another_cluster_are_not_read(
    planner: Planner, archive: MadeArchive, noted: str | None, told: str | None
) -> None:
    write_or_check_note(archive.store, archive.layout, noted)
    brokers = Brokers({0: (10, 40)}, cluster_id=told)
    assert TopicLogs(planner, BrokerConfig(), ("orders",), brokers).read(COMMITTED)
    if noted is not None:
        brokers.cluster_id = "kafka-2"
        with pytest.raises(ConfigurationError, match=r"kafka-2, but the archive .* kafka-1"):
            TopicLogs(planner, BrokerConfig(), ("orders",), brokers).read(COMMITTED)


def test_another_topic_id_on_the_brokers_is_refused(planner: Planner, archive: MadeArchive) -> None:
    archive.mark(10, 20, topic_id="id-0")
    with pytest.raises(OtherTopicError, match="the archive has the topic id id-0, but the next"):
        tailed(planner, Brokers({0: (0, 50)})).available({})
    with pytest.raises(BrokerBehindError, match="is exported up to offset 51, but the broker's"):
        tailed(planner, Brokers({0: (0, 50)}, topic_id=None)).available(at(51))


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (15, "the archive ends at offset 20, and the broker's log at 15, of the same topic"),
        (30, "offset 40,.* the broker's log ends at 30, of the same topic"),
    ],
    ids=["before what was thrown away is set aside", "afterwards"],
)
def test_export_waits_while_brokers_end_below_the_exported_offset(
    planner: Planner, archive: MadeArchive, ends: int, said: str
) -> None:
    """The archive will show whether the exported records are affected."""
    brokers = Brokers({0: (5, ends)})
    stood = Manifest(
        cluster=CLUSTER, topic="orders", next_offsets={0: 40}, topic_id="id-1", nonce="a"
    )
    with files_job(archive.store, FakeStorage(), FilesOptions()) as job:
        ours = replace(job, source=tailed(planner, brokers))
        held = ours.manifest_file.replace(ours.manifest_file.load(CLUSTER, "orders", None), stood)
        remaining = ours.remaining()
        assert ours.plan_next(remaining) is None
        [left_out] = ours.held_back(remaining, remaining.state.next_offsets)
        assert (left_out.tp, left_out.offset) == (A, 40)
        assert re.search(said, left_out.detail)
        held = ours.manifest_file.replace(held, stood.model_copy(update={"topic_id": None}))
        with pytest.raises(BrokerBehindError):
            ours.remaining()
        ours.manifest_file.replace(held, stood.model_copy(update={"topic_id": "id-0"}))
        with pytest.raises(OtherTopicError):
            ours.remaining()
    commit = Progress(CLUSTER, COMMITTED, at(40), {}, "c", Tail(topic_ids={"orders": "id-1"}))
    table = FakeTable(commits=[commit])
    run = TableRun(tailed(planner, brokers), TableTerms(), table, no_rows)
    [left_out] = run.remaining().behind
    assert (left_out.tp, left_out.offset) == (A, 40)
    assert re.search(said, left_out.detail)


def begin_transaction(archive: MadeArchive) -> None:
    """Archive five records, and five records of an undecided transaction."""
    log = TransactionalLog(next_offset=20)
    log.write(1, 5, transactional=False)
    log.write(2, 5)
    archive.segment(20, log.batches)
    archive.mark(20, 30)


def test_transaction_that_only_the_archive_can_decide_is_reported_and_waited_for(
    planner: Planner, archive: MadeArchive
) -> None:
    begin_transaction(archive)
    said: list[str] = []
    source = tailed(planner, Brokers({0: (28, 50)}))
    source.logs.say = said.append
    assert source.available({}) == {A: span(0, 25)}
    [text] = said
    assert text.startswith("orders-0: offsets [25, 28) are archived, but the end")
    assert source.logs.waiting == {A: span(25, 28)}
    assert source.available({}) == {A: span(0, 25)}
    assert source.available(at(25)) == {A: span(25, 25)}
    assert len(said) == 1, "it is told once"
    # A killed run that was planned while the broker had the offsets waits, too.
    with pytest.raises(UndecidedRecordsError, match=r"offsets \[25, 28\)"):
        source.plan({A: span(0, 50)}, at(50), fail_on_data_loss=False)
    assert read(source.plan({A: span(28, 50)}, fail_on_data_loss=False)) == (
        [],
        [(A, span(28, 50))],
    )
    # A reader that is already past them has nothing to wait for and logs nothing.
    assert source.available(at(28)) == {A: span(28, 50)}
    assert source.logs.waiting == {}
    assert len(said) == 1
    within = tailed(planner, Brokers({0: (28, 50)}), ending=AtOffsets({A: 22}))
    assert within.available({}) == {A: span(0, 22)}
    assert within.logs.waiting == {}, "it ends before them"


NOW = 2_000_000


def test_transaction_within_a_requested_range_of_offsets_is_reported(
    planner: Planner, archive: MadeArchive
) -> None:
    begin_transaction(archive)
    MadeArchive(archive.store, tp=B).segments(0, 10)
    for until, undecided in ((25, set()), (26, {A})):
        requested = RequestedRange(RangeBound(offset=0), RangeBound(offset=until))
        source = replace(archived(planner), requested=requested)
        assert source.available({}) == {A: span(0, 25), B: span(0, 10)}
        assert source.undecided(at(25, 10)).keys() == undecided


def test_segment_archived_during_a_query_does_not_refuse_a_start_at_the_latest_offset(
    archive: MadeArchive,
) -> None:
    class GrowingPlanner(Planner):
        """A planner during whose first query of the ends another segment is archived."""

        def ends(
            self, tps: Iterable[TopicPartition], isolation: IsolationLevel
        ) -> dict[TopicPartition, Offset]:
            ends = super().ends(tps, isolation)
            if ends == at(20):
                archive.segments(20, 40)
            return ends

    with GrowingPlanner(access_to(archive.store), threads=1) as planner:
        assert archived(planner, starting=Edge.LATEST).available({}) == {A: span(20, 20)}


def no_rows(plan: Plan) -> Rows:
    raise AssertionError(f"read {plan}")


def waiting(
    planner: Planner, brokers: Brokers, reached: dict[TopicPartition, Offset]
) -> list[HeldBack]:
    """What waits for a transaction. On the brokers every transaction began 1,000 s ago."""
    asked: list[dict[TopicPartition, Offset]] = []

    def began(
        _broker: BrokerConfig, offsets: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, int]:
        asked.append(dict(offsets))
        return dict.fromkeys(offsets, NOW - 1_000_000)

    source = tailed(planner, brokers)
    source.logs.ask_timestamps = began
    source.available(reached)
    found = source.undecided(reached)
    assert all(found[tp].first == first for one in asked for tp, first in one.items())
    return list(waiting_for_transactions(found, NOW, 900_000))


def test_transaction_on_the_brokers_only_is_reported(planner: Planner) -> None:
    brokers = Brokers({0: (5, 50), 1: (3, 9)}, committed={0: 60, 1: 12})
    assert waiting(planner, brokers, at(40, 8)) == [], "the export has not come so far"
    told, _ = waiting(planner, brokers, at(50, 9))
    assert (told.tp, told.offset, told.offsets) == (A, 50, 10)
    assert (told.age_s, told.is_finding) == (1000.0, True)
    assert "orders-0: offsets [50, 60) wait for a transaction: one was opened at" in told.detail
    assert "describe-producers --topic orders --partition 0" in told.detail
    assert "abort --topic orders --partition 0 --start-offset 50" in told.detail
    assert waiting(planner, Brokers({0: (5, 50), 1: (3, 9)}), at(50, 9)) == []


def test_archived_transaction_is_reported_with_the_state_on_the_brokers(
    planner: Planner, archive: MadeArchive
) -> None:
    begin_transaction(archive)
    ended = Brokers({0: (5, 50)})
    assert waiting(planner, ended, at(50)) == [], "the brokers have its end"
    [told] = waiting(planner, Brokers({0: (5, 25)}, committed={0: 40}), at(25))
    assert (told.offset, told.offsets) == (25, 15)
    assert "offsets [25, 40) wait for a transaction: producer 2 opened it" in told.detail
    assert "and the brokers have not ended it" in told.detail
    [told] = waiting(planner, Brokers({}), at(25))
    assert "offsets [25, 30)" in told.detail
    assert "nothing that is stored commits or aborts it" in told.detail


def test_an_export_ends_where_it_is_told(planner: Planner) -> None:
    ending = AtOffsets({A: 25, B: 4})
    source = tailed(planner, Brokers({0: (5, 50), 1: (3, 9)}), ending=ending)
    assert source.available({}) == {A: span(0, 25), B: span(3, 4)}
    assert source.available(at(30))[A] == span(30, 30), "the table is farther already"


def test_an_export_that_is_farther_than_its_broker(planner: Planner) -> None:
    source = tailed(planner, Brokers({0: (5, 50)}))
    with pytest.raises(BrokerBehindError, match="up to offset 51, but the broker's log ends at 50"):
        source.available(at(51))


def test_records_from_the_brokers_belong_to_their_newest_epoch(
    planner: Planner, archive: MadeArchive
) -> None:
    """The archive's epoch history is exact; beyond it the brokers only give a bound."""
    archive.epoch_history((2, 0), (3, 12))
    source = tailed(planner, Brokers({0: (5, 50), 1: (3, 9)}, epoch=LeaderEpoch(4)))
    ranges = source.available(at(15))
    assert source.tail(ranges).epoch_histories == {
        A: epoch_history_of([(3, 20), (4, 50)]),
        B: epoch_history_of([(4, 9)]),
    }
    assert source.tail({A: span(20, 50)}).epoch_histories == {A: epoch_history_of([(4, 50)])}
    known = epoch_history_of([(2, 0), (3, 12)])
    assert source.tail({A: span(15, 20)}).epoch_histories == {A: known}
    table = tailed(planner, Brokers({0: (5, 50)}, epoch=LeaderEpoch(3)))
    table.available({})
    assert table.tail({A: span(0, 50)}).epoch_histories == {A: epoch_history_of([(2, 0), (3, 12)])}
    assert table.tail({A: span(0, 12)}).epoch_histories == {A: epoch_history_of([(2, 0)])}
    assert table.truncated({A: Position(Offset(50), epoch_history_of([(2, 50)]))}) != ()
    other = TopicPartition("others", 0)
    assert table.truncated({other: Position(Offset(50), epoch_history_of([(2, 50)]))}) == ()


def test_killed_run_continues_up_to_the_decided_offset(
    planner: Planner, archive: MadeArchive
) -> None:
    """When it was planned, the broker still had a part of a transaction that it has deleted
    since.
    """
    begin_transaction(archive)
    target, said, options = FakeStorage(), list[str](), FilesOptions(fail_on_data_loss=False)
    with files_job(archive.store, target, options, say=said.append) as stopped:
        held = stopped.remaining().held
        tail = Tail(at(50))
        begun_run = begun(held.manifest, {0: Span(first=0, until=50)}, options, "n", tail)
        stopped.manifest_file.replace(held, begun_run)
        job = replace(stopped, source=tailed(planner, Brokers({0: (28, 50)})))
        assert run_once(job) is not None
        assert run_once(job) is None
    assert offsets_in(target.contents()) == {(0, offset): 1 for offset in range(25)}
    manifest = manifest_in(target.contents())
    assert (manifest.pending, manifest.next_offsets) == (None, {0: 25})
    [told] = said
    assert "was withdrawn: topic orders, partition 0, offsets [25, 28): they belong to" in told


def test_topic_exported_only_from_the_brokers_need_not_be_archived(
    planner: Planner, archive: MadeArchive
) -> None:
    for key in list(archive.store.contents()):  # type: ignore[attr-defined]
        archive.store.delete_object(key)
    said: list[str] = []
    source = replace(archived(planner), say=said.append)
    assert source.available(at(50, 9), at(50, 9)) == {}
    assert source.archive_ends("orders") == {}, "who waits for it goes on waiting"
    assert said == ["orders: nothing of it is archived yet"]
    for unknown in (at(50), at(50, 9)):
        with pytest.raises(NoSuchTopicError):
            source.available(unknown, at(49, 9))
    for unknown in ({}, at(50)):
        with pytest.raises(NoSuchTopicError):
            source.available(unknown)
    MadeArchive(archive.store, tp=TopicPartition("other", 0)).segments(0, 5)
    two = replace(source, request=replace(source.request, selection=Topics(("orders", "other"))))
    other = {TopicPartition("other", 0): Offset(3)}
    assert two.available(at(50) | other, at(50)) == {TopicPartition("other", 0): span(3, 5)}


def test_empty_partition_of_an_unarchived_topic_need_not_be_archived() -> None:
    with Planner(access_to(FakeStorage()), threads=1) as planner:
        source = tailed(planner, Brokers({0: (0, 5), 1: (0, 0)}, epoch=LeaderEpoch(4)))
        chunk = next_chunk(source.available({}), None)
        assert chunk is not None
        tail, held = source.tail(chunk.reached), offsets_after({}, chunk)
        assert (held, tail.offsets) == ({A: 5, B: 0}, {A: 5, B: 0})
        assert tail.epoch_histories.keys() == {A}
        assert source.archived.available(held, tail.offsets) == {}


def test_table_does_not_begin_above_the_log_end(planner: Planner) -> None:
    """The next run would take the written offsets for those of another log."""
    source = tailed(planner, Brokers({0: (5, 50)}), starting=AtOffsets({A: 51}))
    with pytest.raises(ConfigurationError, match="partition 0: offset 51 is above 50, where the b"):
        source.available({})
    assert source.available(at(50)) == {A: span(50, 50)}
    at_end = tailed(planner, Brokers({0: (5, 50)}), starting=AtOffsets({A: 50}))
    assert at_end.available({}) == {A: span(50, 50)}
    with pytest.raises(ConfigurationError, match="offset 50 is above 20, where the archived"):
        at_end.archived.available({})


def test_each_commit_says_of_which_topic_its_records_are(
    archive: MadeArchive, planner: Planner
) -> None:
    source = archived(planner)
    assert source.tail(source.available({})) == Tail()  # an archive that does not say
    archive.mark(10, 20, topic_id="id-1")
    assert source.tail(source.available({})) == Tail({}, {"orders": "id-1"})
