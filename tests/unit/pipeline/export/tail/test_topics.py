"""Archives and brokers together: what a run spans, and where its records are read."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from pyspark.sql import DataFrame

from sidetier.archive.objects.layout import agree
from sidetier.config.model import BrokerConfig
from sidetier.pipeline.errors import MissingRecordsError, NoSuchTopicError, UndecidedRecordsError
from sidetier.pipeline.export.epoch_history import Position, epoch_history_of
from sidetier.pipeline.export.errors import OtherTopicError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.source import ArchiveSource
from sidetier.pipeline.export.files.tailed import TailedSource
from sidetier.pipeline.export.held_back import HeldBack, waiting_for_transactions
from sidetier.pipeline.export.state.changes import Tail as FilesTail
from sidetier.pipeline.export.state.changes import begun
from sidetier.pipeline.export.state.manifest import Manifest, Span
from sidetier.pipeline.export.state.manifest_file import Held
from sidetier.pipeline.export.tables.archived import ArchivedRecords
from sidetier.pipeline.export.tables.chunks import next_chunk, offsets_after
from sidetier.pipeline.export.tables.progress import Progress, Tail
from sidetier.pipeline.export.tables.run import TableRun, Terms
from sidetier.pipeline.export.tables.tailed import TailedRecords
from sidetier.pipeline.export.tail.logs import (
    BrokerBehindError,
    BrokerLog,
    BrokerTopic,
    StillOnBrokerError,
)
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import AtOffsets, ReadRequest, Topics
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.exported_files import CLUSTER, files_job, manifest_in, offsets_in
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.record_batches import TransactionalLog
from tests.unit.pipeline.export.tables.fakes import FakeTable

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
COMMITTED = IsolationLevel.READ_COMMITTED


@dataclass
class Brokers:
    """What the cluster says; `meanwhile` happens once it was asked."""

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
    """orders-0, offsets 0 to 19."""
    made = MadeArchive(tp=A)
    made.segments(0, 10, 20)
    return made


@pytest.fixture
def planner(archive: MadeArchive) -> Iterator[Planner]:
    with Planner(access_to(archive.store), threads=1) as planner:
        yield planner


def files(planner: Planner, brokers: Brokers) -> TailedSource:
    logs = TopicLogs(planner, BrokerConfig(), ("orders",), brokers)
    return TailedSource(ArchiveSource(planner, "orders"), logs)


def tables(planner: Planner, brokers: Brokers, **request: object) -> TailedRecords:
    logs = TopicLogs(planner, BrokerConfig(), ("orders",), brokers)
    asked = ReadRequest(Topics(("orders",)), isolation=COMMITTED, **request)  # type: ignore[arg-type]

    def no_frames(plan: Plan) -> DataFrame:
        return cast("DataFrame", plan)

    return TailedRecords(ArchivedRecords("prod-a", planner, asked, no_frames), logs)


def span(first: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(first), Offset(until))


def read(plan: Plan) -> tuple[list[OffsetRange], list[tuple[TopicPartition, OffsetRange]]]:
    """Which offsets of orders-0 the archive gives, and which of either the brokers."""
    return [one.range for one in plan.splits], [(one.tp, one.range) for one in plan.on_broker]


def test_files_go_on_behind_the_archive(planner: Planner) -> None:
    source = files(planner, Brokers({0: (5, 50), 1: (3, 9)}))
    spans = source.spans({0: 15}, {})
    assert spans == {0: Span(first=15, until=50), 1: Span(first=3, until=9)}
    assert source.tail(spans) == FilesTail({0: 50, 1: 9}, "id-1")
    assert source.tail({0: Span(first=15, until=20)}) == FilesTail({}, "id-1")
    plan = source.plan({A: span(15, 50), B: span(3, 9)}, FilesOptions(), {})
    assert read(plan) == ([span(15, 20)], [(A, span(20, 50)), (B, span(3, 9))])
    assert plan.ranges == {A: span(15, 50), B: span(3, 9)}
    assert source.spans({0: 50, 1: 9}, {}) == {}


def test_what_is_on_the_brokers_alone_has_no_bytes(archive: MadeArchive, planner: Planner) -> None:
    """It comes behind all that is archived of its partition, whatever the bytes."""
    brokers = Brokers({0: (5, 50), 1: (3, 9)})
    source, records = files(planner, brokers), tables(planner, brokers)
    spans, ranges = source.spans({0: 0}, {}), records.stored({A: Offset(0), B: Offset(3)})
    archive.segments(20, 40)  # seen later: of this look it is the brokers'
    for most, until in ((1, 10), (400, 10), (10_000, 50)):
        cut = source.within(spans, most)
        assert (cut[0].first, cut[1]) == (0, spans[1])
        assert cut[0].until == until
        assert records.within(ranges, most) == {A: span(0, until), B: span(3, 9)}
    behind = {0: Span(first=20, until=50)}
    assert source.within(behind, 1) == behind


def test_what_was_planned_on_the_broker_is_read_wherever_it_is_by_then(
    archive: MadeArchive, planner: Planner
) -> None:
    first = files(planner, Brokers({0: (5, 50)}))
    assert read(first.plan({A: span(0, 50)}, FilesOptions(), {0: 50}))[1] == [(A, span(20, 50))]
    archive.segments(20, 40)
    later = files(planner, Brokers({0: (30, 90)}))
    plan = later.plan({A: span(0, 50)}, FilesOptions(), {0: 50})
    assert read(plan) == ([span(0, 40)], [(A, span(40, 50))])


def test_without_the_brokers_such_a_run_has_to_wait(archive: MadeArchive, planner: Planner) -> None:
    source = ArchiveSource(planner, "orders")
    ranges = {A: span(0, 40)}
    with pytest.raises(StillOnBrokerError, match="up to offset 40, and has not ended; the archive"):
        source.plan(ranges, FilesOptions(fail_on_data_loss=False), {0: 40})
    assert source.spans({0: 40}, {0: 40}) == {}
    archive.segments(20, 40)
    assert read(source.plan(ranges, FilesOptions(), {0: 40})) == ([span(0, 40)], [])


def test_what_a_broker_has_lost_since_it_was_planned_is_never_stepped_over(
    planner: Planner,
) -> None:
    source = files(planner, Brokers({0: (5, 30)}))
    with pytest.raises(MissingRecordsError, match=r"offsets \[30, 50\) \(the broker's log ends at"):
        source.plan({A: span(0, 50)}, FilesOptions(fail_on_data_loss=False), {0: 50})


def test_what_was_archived_between_the_looks_is_no_gap(
    archive: MadeArchive, planner: Planner
) -> None:
    brokers = Brokers({0: (35, 60)}, meanwhile=[archive])
    source = files(planner, brokers)
    assert source.spans({}, {}) == {0: Span(first=0, until=60)}
    plan = source.plan({A: span(0, 60)}, FilesOptions(), {})
    assert read(plan) == ([span(0, 40)], [(A, span(40, 60))])
    assert brokers.asked == 2


def test_a_gap_is_an_error_or_counted(planner: Planner) -> None:
    ranges = {A: span(0, 60)}
    with pytest.raises(MissingRecordsError, match=r"orders, partition 0, offsets \[20, 35\)"):
        files(planner, Brokers({0: (35, 60)})).plan(ranges, FilesOptions(), {})
    tolerant = files(planner, Brokers({0: (35, 60)}))
    plan = tolerant.plan(ranges, FilesOptions(fail_on_data_loss=False), {})
    assert [one.range for one in plan.missing] == [span(20, 35)]
    assert read(plan) == ([span(0, 20)], [(A, span(35, 60))])


def test_a_topic_that_neither_has(planner: Planner, archive: MadeArchive) -> None:
    source, said = files(planner, Brokers({})), list[str]()
    source.logs.said = said.append
    assert source.spans({}, {}) == {0: Span(first=0, until=20)}
    assert said == ["orders: the brokers have no topic of this name: only the archive is read"]
    for key in list(archive.store.contents()):  # type: ignore[attr-defined]
        archive.store.delete_object(key)
    with pytest.raises(NoSuchTopicError, match="nothing of it is stored"):
        files(planner, Brokers({})).spans({}, {})


@pytest.mark.parametrize(
    ("noted", "told"), [("kafka-1", "kafka-1"), (None, "kafka-1"), ("kafka-1", None)]
)
def test_brokers_of_another_cluster_are_not_read(
    planner: Planner, archive: MadeArchive, noted: str | None, told: str | None
) -> None:
    agree(archive.store, archive.layout, noted)
    brokers = Brokers({0: (10, 40)}, cluster_id=told)
    assert TopicLogs(planner, BrokerConfig(), ("orders",), brokers).look(COMMITTED)
    if noted is not None:
        brokers.cluster_id = "kafka-2"
        with pytest.raises(ConfigurationError, match=r"kafka-2, and the archive .* kafka-1"):
            TopicLogs(planner, BrokerConfig(), ("orders",), brokers).look(COMMITTED)


def test_another_topic_of_the_name(planner: Planner, archive: MadeArchive) -> None:
    archive.mark(10, 20, topic_id="id-0")
    with pytest.raises(OtherTopicError, match="the archive has the topic id id-0, and what comes"):
        files(planner, Brokers({0: (0, 50)})).spans({}, {})
    with pytest.raises(BrokerBehindError, match="is exported up to offset 51, and the broker's"):
        files(planner, Brokers({0: (0, 50)}, topic_id=None)).spans({0: 51}, {})


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (15, "the archive ends at offset 20, and the broker's log at 15, of the same topic"),
        (30, "offset 40,.* the broker's log ends at 30, of the same topic"),
    ],
    ids=["before what was thrown away is set aside", "afterwards"],
)
def test_brokers_that_have_thrown_records_away_are_waited_for(
    planner: Planner, archive: MadeArchive, ends: int, said: str
) -> None:
    """The archive will show whether what was exported is concerned."""
    brokers = Brokers({0: (5, ends)})
    stood = Manifest(
        cluster=CLUSTER, topic="orders", next_offsets={0: 40}, topic_id="id-1", nonce="a"
    )
    with files_job(archive.store, FakeStorage(), FilesOptions()) as job:
        ours = replace(job, source=files(planner, brokers))
        following = ours.next_run(Held(stood, None))
        assert following.run is None
        assert [(one.tp, one.offset) for one in following.held_back] == [(A, 40)]
        assert re.search(said, following.held_back[0].detail)
        with pytest.raises(BrokerBehindError):
            ours.next_run(Held(stood.model_copy(update={"topic_id": None}), None))
        other = Held(stood.model_copy(update={"topic_id": "id-0"}), None)
        with pytest.raises(OtherTopicError):
            ours.next_run(other)
    held: dict[TopicPartition, Offset] = {A: Offset(40)}
    commit = Progress("prod-a", COMMITTED, held, {}, "c", Tail(topic_ids={"orders": "id-1"}))
    run = TableRun(FakeTable(commits=[commit]), tables(planner, brokers), Terms())
    [left_out] = run.standing().behind
    assert (left_out.tp, left_out.offset) == (A, 40)
    assert re.search(said, left_out.detail)


def begin_transaction(archive: MadeArchive) -> None:
    """Archive five records, and five of a transaction that nothing decides yet."""
    log = TransactionalLog(next_offset=20)
    log.write(1, 5, transactional=False)
    log.write(2, 5)
    archive.segment(20, log.batches)
    archive.mark(20, 30)


def test_what_only_the_archive_can_decide_is_told_and_waited_for(
    planner: Planner, archive: MadeArchive
) -> None:
    begin_transaction(archive)
    said: list[str] = []
    source = files(planner, Brokers({0: (28, 50)}))
    source.logs.said = said.append
    assert source.spans({}, {}) == {0: Span(first=0, until=25)}
    [text] = said
    assert text.startswith("orders-0: offsets [25, 28) are archived, in a transaction whose end")
    assert source.logs.waiting == {A: span(25, 28)}
    assert source.spans({}, {}) == {0: Span(first=0, until=25)}
    assert source.spans({0: 25}, {}) == {}
    assert len(said) == 1, "it is told once"
    # A run that was fixed while the broker had them, and was killed, waits too.
    tolerant = FilesOptions(fail_on_data_loss=False)
    with pytest.raises(UndecidedRecordsError, match=r"offsets \[25, 28\)"):
        source.plan({A: span(0, 50)}, tolerant, {0: 50})
    assert read(source.plan({A: span(28, 50)}, tolerant, {})) == ([], [(A, span(28, 50))])
    # Who is behind them already has nothing to wait for, and is told nothing.
    assert source.spans({0: 28}, {}) == {0: Span(first=28, until=50)}
    assert source.logs.waiting == {}
    assert len(said) == 1
    table = tables(planner, Brokers({0: (28, 50)}))
    assert table.stored({}) == {A: span(0, 25)}
    assert table.logs.waiting == {A: span(25, 28)}
    within = tables(planner, Brokers({0: (28, 50)}), ending=AtOffsets({A: 22}))
    assert within.stored({}) == {A: span(0, 22)}
    assert within.logs.waiting == {}, "it ends before them"


NOW = 2_000_000


def waiting(planner: Planner, brokers: Brokers, reached: dict[int, int]) -> list[HeldBack]:
    """What waits for a transaction; of files and of tables it is the same. On the brokers every
    transaction began 1,000 s ago.
    """
    asked: list[dict[TopicPartition, Offset]] = []

    def began(
        _broker: BrokerConfig, offsets: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, int]:
        asked.append(dict(offsets))
        return dict.fromkeys(offsets, NOW - 1_000_000)

    of_files, of_tables = files(planner, brokers), tables(planner, brokers)
    of_files.logs.ask_timestamps = of_tables.logs.ask_timestamps = began
    of_files.spans(reached, {})
    ends = {TopicPartition("orders", one): Offset(at) for one, at in reached.items()}
    of_tables.stored(ends)
    found = of_tables.undecided(ends)
    assert {tp.partition: one for tp, one in found.items()} == of_files.undecided(reached)
    assert all(found[tp].first == at for one in asked for tp, at in one.items())
    return list(waiting_for_transactions(found, NOW, 900_000))


def test_a_transaction_that_only_the_brokers_have_is_told(planner: Planner) -> None:
    brokers = Brokers({0: (5, 50), 1: (3, 9)}, committed={0: 60, 1: 12})
    assert waiting(planner, brokers, {0: 40, 1: 8}) == [], "the export has not come so far"
    told, _ = waiting(planner, brokers, {0: 50, 1: 9})
    assert (told.tp, told.offset, told.offsets) == (A, 50, 10)
    assert (told.age_s, told.is_finding) == (1000.0, True)
    assert "orders-0: offsets [50, 60) wait for a transaction: one was opened at" in told.detail
    assert "describe-producers --topic orders --partition 0" in told.detail
    assert "abort --topic orders --partition 0 --start-offset 50" in told.detail
    assert waiting(planner, Brokers({0: (5, 50), 1: (3, 9)}), {0: 50, 1: 9}) == []


def test_a_transaction_of_the_archive_is_told_with_what_the_brokers_know(
    planner: Planner, archive: MadeArchive
) -> None:
    begin_transaction(archive)
    ended = Brokers({0: (5, 50)})
    assert waiting(planner, ended, {0: 50}) == [], "the brokers have its end"
    [told] = waiting(planner, Brokers({0: (5, 25)}, committed={0: 40}), {0: 25})
    assert (told.offset, told.offsets) == (25, 15)
    assert "offsets [25, 40) wait for a transaction: producer 2 opened it" in told.detail
    assert "and the brokers have not ended it" in told.detail
    [told] = waiting(planner, Brokers({}), {0: 25})
    assert "offsets [25, 30)" in told.detail
    assert "nothing that is stored commits or aborts it" in told.detail


def test_tables_go_on_behind_the_archive(planner: Planner) -> None:
    source = tables(planner, Brokers({0: (5, 50), 1: (3, 9)}))
    stored = source.stored({A: Offset(15)})
    assert stored == {A: span(0, 50), B: span(3, 9)}
    ranges = {A: span(15, 30), B: span(3, 9)}
    assert source.tail(ranges) == Tail({A: Offset(30), B: Offset(9)}, {"orders": "id-1"})
    assert source.tail({A: span(15, 20)}).offsets == {}
    assert read(source.plan(ranges)) == ([span(15, 20)], [(A, span(20, 30)), (B, span(3, 9))])
    assert cast("object", source.frame(ranges)) == source.plan(ranges)


def test_tables_end_where_they_are_told(planner: Planner) -> None:
    ending = AtOffsets({A: 25, B: 4})
    source = tables(planner, Brokers({0: (5, 50), 1: (3, 9)}), ending=ending)
    assert source.stored({}) == {A: span(0, 25), B: span(3, 4)}
    assert source.stored({A: Offset(30)})[A] == span(0, 30), "the table is farther already"


def test_a_table_that_is_farther_than_its_broker(planner: Planner) -> None:
    source = tables(planner, Brokers({0: (5, 50)}))
    with pytest.raises(BrokerBehindError, match="below offset 51, but the broker's log ends at 50"):
        source.stored({A: Offset(51)})


def test_what_the_brokers_give_is_of_their_newest_epoch(
    planner: Planner, archive: MadeArchive
) -> None:
    """The archive's epoch history tells it exactly; of what lies behind, the brokers tell a
    bound.
    """
    archive.epoch_history((2, 0), (3, 12))
    source = files(planner, Brokers({0: (5, 50), 1: (3, 9)}, epoch=LeaderEpoch(4)))
    spans = source.spans({0: 15}, {})
    assert source.tail(spans).epochs == {0: ((3, 20), (4, 50)), 1: ((4, 9),)}
    assert source.tail({0: Span(first=20, until=50)}).epochs == {0: ((4, 50),)}
    assert source.tail({0: Span(first=15, until=20)}).epochs == {0: ((2, 0), (3, 12))}
    table = tables(planner, Brokers({0: (5, 50)}, epoch=LeaderEpoch(3)))
    table.stored({})
    assert table.tail({A: span(0, 50)}).epoch_histories == {A: epoch_history_of([(2, 0), (3, 12)])}
    assert table.tail({A: span(0, 12)}).epoch_histories == {A: epoch_history_of([(2, 0)])}
    assert table.truncated({A: Position(Offset(50), epoch_history_of([(2, 50)]))}) != ()
    other = TopicPartition("others", 0)
    assert table.truncated({other: Position(Offset(50), epoch_history_of([(2, 50)]))}) == ()


def test_a_run_that_was_killed_goes_as_far_as_can_be_decided(
    planner: Planner, archive: MadeArchive
) -> None:
    """When it was planned, the broker had what it has deleted since: a part of a transaction."""
    begin_transaction(archive)
    target, said, options = FakeStorage(), list[str](), FilesOptions(fail_on_data_loss=False)
    with files_job(archive.store, target, options, said=said.append) as stopped:
        held = stopped.look()
        tail = FilesTail({0: 50})
        begun_run = begun(held.manifest, {0: Span(first=0, until=50)}, options, "n", tail)
        stopped.keeper.replace(held, begun_run)
        job = replace(stopped, source=files(planner, Brokers({0: (28, 50)})))
        assert job.once().run is not None
        assert job.once().run is None
    assert offsets_in(target.contents()) == {(0, offset): 1 for offset in range(25)}
    manifest = manifest_in(target.contents())
    assert (manifest.pending, manifest.next_offsets) == (None, {0: 25})
    [told] = said
    assert "is given up: topic orders, partition 0, offsets [25, 28): they belong to" in told


def test_what_only_the_brokers_had_need_not_be_archived(
    planner: Planner, archive: MadeArchive
) -> None:
    for key in list(archive.store.contents()):  # type: ignore[attr-defined]
        archive.store.delete_object(key)
    said: list[str] = []
    source = ArchiveSource(planner, "orders", said=said.append)
    assert source.spans({0: 50, 1: 9}, {0: 50, 1: 9}) == {}
    assert source.ends() == {}, "who waits for it goes on waiting"
    archived = replace(tables(planner, Brokers({})).archived, said=said.append)
    held = {A: Offset(50)}
    assert archived.stored(held, held) == {}
    assert said == ["orders: nothing of it is archived yet"] * 2
    for unknown in ({}, {0: 50}, {0: 50, 1: 9}):
        with pytest.raises(NoSuchTopicError):
            source.spans(unknown, {0: 49, 1: 9})
    with pytest.raises(NoSuchTopicError):
        archived.stored(held, {})
    MadeArchive(archive.store, tp=TopicPartition("other", 0)).segments(0, 5)
    two = replace(
        archived, request=replace(archived.request, selection=Topics(("orders", "other")))
    )
    other = {TopicPartition("other", 0): Offset(3)}
    assert two.stored(held | other, held) == {TopicPartition("other", 0): span(0, 5)}


def test_an_empty_partition_of_a_topic_on_the_brokers_alone_need_not_be_archived() -> None:
    with Planner(access_to(FakeStorage()), threads=1) as planner:
        source = tables(planner, Brokers({0: (0, 5), 1: (0, 0)}, epoch=LeaderEpoch(4)))
        chunk = next_chunk(source.stored({}), None)
        assert chunk is not None
        tail, held = source.tail(chunk.reached), offsets_after({}, chunk)
        assert (held, tail.offsets) == ({A: 5, B: 0}, {A: 5, B: 0})
        assert tail.epoch_histories.keys() == {A}
        assert source.archived.stored(held, tail.offsets) == {}


def test_a_table_does_not_begin_above_the_end(planner: Planner) -> None:
    """The run behind it would take what it has written for the offsets of another log."""
    source = tables(planner, Brokers({0: (5, 50)}), starting=AtOffsets({A: 51}))
    with pytest.raises(ConfigurationError, match="partition 0: offset 51 is above 50, where the b"):
        source.stored({})
    assert source.stored({A: Offset(50)}) == {A: span(0, 50)}
    at_end = tables(planner, Brokers({0: (5, 50)}), starting=AtOffsets({A: 50}))
    assert at_end.stored({}) == {A: span(50, 50)}
    with pytest.raises(ConfigurationError, match="offset 50 is above 20, where what is archived"):
        at_end.archived.stored({})
