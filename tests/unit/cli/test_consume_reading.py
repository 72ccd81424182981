"""The loop of `sidetier consume` over a source that a test fills, and over a `TieredConsumer`."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.missing_offsets import GapReason
from sidetier.archive.positions import (
    BEGINNING,
    END,
    Position,
    PositionKind,
    offset_of,
    parse_position,
    plan_ranges,
)
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.cli.consume.formats import as_text, writer_of
from sidetier.cli.consume.request import RecordFormat, RecordOutput, unescaped
from sidetier.cli.consume.session import write_all
from sidetier.cli.progress import records_shown
from sidetier.consumer.topic_reading.reading import TopicReading, TopicSource
from sidetier.consumer.topic_reading.request import TopicReadRequest
from sidetier.consumer.topic_reading.tiered_source import TieredTopicSource, note_undecided
from sidetier.pipeline.export.errors import RecordCountError
from sidetier.segments.errors import (
    ArchiveError,
    LeadershipUnavailableError,
    SidetierError,
    StoreUnavailableError,
)
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from tests.harness.one_log import World
from tests.harness.terminal import Terminal
from tests.harness.tiered import tiered, world_of

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_700_000_000_000
AWAY = StoreUnavailableError("get t-0: 503")


def offsets(start: int, end: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(end))


def records(
    first: int, end: int, next_offset: int | None = None, tp: TopicPartition = TP
) -> Records:
    rows = list(range(first, end))
    batch = pa.RecordBatch.from_pydict({"offset": rows, "value": [b"%d" % one for one in rows]})
    return Records(tp, batch, Offset(end if next_offset is None else next_offset))


def gap(first: int, end: int) -> Gap:
    return Gap(
        TP,
        OffsetRange(Offset(first), Offset(end)),
        GapReason.NOT_STORED,
        f"t-0: {first} to {end - 1}",
    )


class FilledSource:
    """Return the prepared items one by one; then raise KeyboardInterrupt, as after Ctrl-C."""

    def __init__(self, *taken: Taken, end: int = 20, partitions: Sequence[int] = (0,)) -> None:
        self.taken = list(taken)
        self.end = end
        self.numbers = partitions
        self.skipped = 0
        self.done: list[str] = []

    def partitions(self) -> Sequence[int]:
        return self.numbers

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        del tp
        return offsets(0, self.end)

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        del tp
        return timestamp_ms if timestamp_ms < self.end else None

    def assign(self, starts: dict[TopicPartition, int]) -> None:
        self.done += [f"{tp} from {offset}" for tp, offset in starts.items()]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.done.append(f"{tp} to {offset}")

    def finish(self, tp: TopicPartition) -> None:
        self.done.append(f"{tp} is done")

    def take(self, most: int, timeout: float) -> list[Taken]:
        assert most > 0
        assert timeout > 0
        if not self.taken:
            raise KeyboardInterrupt
        return [self.taken.pop(0)]


class Ran:
    """One run of the loop: written records, printed messages, and the error that ended it."""

    def __init__(self, source: TopicSource, first_written: int = 0, **asked: Any) -> None:  # noqa: ANN401 -- of a Request
        request = TopicReadRequest("t", **asked)
        stream = io.BytesIO()
        self.told: list[str] = []
        self.steps: list[tuple[int, int]] = []
        self.reading = TopicReading(
            source,
            request,
            plan_ranges(
                source,
                request.topic,
                request.begin,
                request.end,
                NOW_MS,
                partitions=request.partitions,
                follow=request.follow,
                on_note=self.told.append,
            ),
            self.told.append,
        )
        writer = writer_of(RecordOutput(RecordFormat.RAW, delimiter=b" "), stream)

        def write(tp: TopicPartition, rows: pa.RecordBatch) -> int:
            return writer(tp, rows.slice(first_written))

        self.error: BaseException | None = None
        try:
            write_all(self.reading, write, lambda done, count: self.steps.append((done, count)))
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 -- looked at by the test
            self.error = error
        self.written = [int(word.removeprefix(b"value-")) for word in stream.getvalue().split()]


def test_loop_ends_once_all_partitions_are_done() -> None:
    source = FilledSource(records(0, 15), records(15, 20))
    ran = Ran(source)
    assert (ran.written, ran.error, ran.told) == (list(range(20)), None, [])
    assert source.done == ["t-0 from 0", "t-0 is done"]
    assert ran.steps == [(15, 15), (20, 20)]
    assert ran.reading.total == 20


def test_records_beyond_the_end_are_cut_off() -> None:
    begin, end = parse_position("3", 0), parse_position("7", 0)
    assert Ran(FilledSource(records(3, 12, 30)), begin=begin, end=end).written == [3, 4, 5, 6]
    [read] = Ran(FilledSource(records(0, 5, 20))).reading.partitions.values()
    assert (read.records, read.position) == (5, 20)


def test_limit_applies_to_all_partitions_together() -> None:
    source = FilledSource(records(0, 5), records(0, 9, tp=OTHER), partitions=(0, 1))
    ran = Ran(source, limit=8)
    assert ran.written == [0, 1, 2, 3, 4, 0, 1, 2]
    assert {tp: read.position for tp, read in ran.reading.partitions.items()} == {TP: 5, OTHER: 3}
    assert ran.error is None


def test_follow_continues_at_the_end_and_after_transient_errors() -> None:
    source = FilledSource(
        records(18, 20), ReachedEnd(TP, Offset(20)), Failed(TP, Offset(20), AWAY), records(20, 22)
    )
    ran = Ran(source, begin=parse_position("-2", 0), follow=True)
    assert ran.written == [18, 19, 20, 21]
    assert ran.told == ["get t-0: 503; tried again"]
    assert isinstance(ran.error, KeyboardInterrupt)
    assert source.done == ["t-0 from 18"]
    assert ran.reading.total is None


@pytest.mark.parametrize("error", [AWAY, ArchiveError("it was replaced")])
def test_failure_without_follow_ends_the_loop(error: SidetierError) -> None:
    assert Ran(FilledSource(records(0, 3), Failed(TP, Offset(3), error))).error is error


def test_permanent_error_ends_follow() -> None:
    error = ArchiveError("it was replaced")
    assert Ran(FilledSource(Failed(TP, Offset(3), error)), follow=True).error is error


def test_record_that_is_not_written_ends_the_command() -> None:
    ran = Ran(FilledSource(records(0, 5)), first_written=1)
    assert isinstance(ran.error, RecordCountError)
    assert "t-0: 5 records were read, and 4 were written" in str(ran.error)
    assert ran.reading.records == 0


def test_end_below_the_bounds_is_reported() -> None:
    ran = Ran(FilledSource(records(0, 15), ReachedEnd(TP, Offset(15))))
    assert "offsets [15, 20) are left out: a transaction that begins at 15 is not" in ran.told[0]
    assert ran.error is None


def test_skipped_gaps_are_counted_and_a_gap_beyond_the_end_ends_the_loop() -> None:
    source = FilledSource(records(0, 5), gap(5, 9), records(9, 11), gap(11, 40))
    ran = Ran(source, skip_gaps=True)
    assert ran.written == [0, 1, 2, 3, 4, 9, 10]
    assert source.done == ["t-0 from 0", "t-0 to 9", "t-0 is done"]
    assert ran.reading.has_gaps
    [read] = ran.reading.partitions.values()
    assert (read.missing, read.position) == (4 + 9, 20)


def test_gap_ends_the_loop_with_advice() -> None:
    ran = Ran(FilledSource(records(0, 5), gap(5, 9)))
    assert str(ran.error).startswith("t-0: 5 to 8\n--from 9 continues after them")
    assert not ran.reading.has_gaps


def test_damage_is_handled_like_a_gap() -> None:
    error = DamagedArchiveError("k: byte 7", "k", 7, OffsetRange(Offset(5), Offset(9)))
    source = FilledSource(Failed(TP, Offset(5), error), records(9, 20))
    assert Ran(source, skip_gaps=True).written == list(range(9, 20))
    assert source.done[1] == "t-0 to 9"


def test_records_of_a_finished_partition_are_ignored() -> None:
    source = FilledSource(
        records(0, 20), records(0, 4), records(0, 20, tp=OTHER), partitions=(0, 1)
    )
    assert Ran(source).written == [*range(20), *range(20)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", BEGINNING),
        (" END ", END),
        ("0", Position(PositionKind.OFFSET, 0)),
        ("-7", Position(PositionKind.BEFORE_END, 7)),
        ("@-1", Position(PositionKind.TIME, -1)),
        ("1970-01-02", Position(PositionKind.TIME, 86_400_000)),
        ("1969-12-31T23:59:59.999Z", Position(PositionKind.TIME, -1)),
        ("2h", Position(PositionKind.TIME, 2_800_000)),
        ("-1.5s", Position(PositionKind.TIME, 9_998_500)),
    ],
)
def test_offsets_and_times_are_parsed(text: str, place: Position) -> None:
    assert parse_position(text, 10_000_000) == place


def test_time_after_all_records_is_the_end() -> None:
    place, bounds = Position(PositionKind.TIME, 5), offsets(3, 9)
    assert offset_of(place, bounds, lambda _: None) == 9
    assert offset_of(place, bounds, lambda _: 4) == 4
    assert offset_of(Position(PositionKind.BEFORE_END, 100), bounds, lambda _: None) == 3


@pytest.mark.parametrize(
    ("text", "data"),
    [("", b""), (r"\n", b"\n"), (r"a\\n", b"a\\n"), (r"\x00\xffé", b"\x00\xff\xc3\xa9")],
)
def test_escapes_are_decoded(text: str, data: bytes) -> None:
    assert unescaped(text) == data


@pytest.mark.parametrize("text", ["\\", r"\x1", r"\xgg", r"\u0041"])
def test_invalid_escapes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="after a backslash"):
        unescaped(text)


def test_bytes_that_are_not_text_are_not_lost() -> None:
    assert as_text(b"\xff") == {"base64": "/w=="}
    assert (as_text(b""), as_text(None)) == ("", None)


def test_progress_is_shown_only_on_terminals() -> None:
    stream, terminal = io.StringIO(), Terminal()
    for target in (stream, terminal):
        with records_shown(10, wanted=True, stream=target) as update:
            update(5, 5)
    assert stream.getvalue() == ""
    assert "5 records" in terminal.getvalue()


@pytest.fixture
def world() -> World:
    """A topic of which Kafka has the offsets from 60 on and the store those below 80."""
    return world_of(kafka_start=60, store=(0, 80))


@pytest.fixture
def source(world: World) -> Iterator[TieredTopicSource]:
    undecided: list[str] = []
    config = {
        "enable.partition.eof": True,
        "tiered.storage.gap.patience": "0s",
        "error_cb": note_undecided(undecided),
    }
    it = tiered(world, "KAFKA_PREFERRED", config)
    with it.consumer:
        yield TieredTopicSource(it.consumer, "t", "nowhere:1", it.registry, undecided)


def test_tiered_consumer_is_read_to_the_end_of_both_sources(source: TieredTopicSource) -> None:
    assert source.bounds(TP) == offsets(0, 100)
    ran = Ran(source, partitions=(0,))
    assert (ran.written, ran.error) == (list(range(100)), None)
    assert source.skipped == 0


def test_gap_of_the_tiered_consumer_is_an_error_with_advice(
    source: TieredTopicSource, world: World
) -> None:
    world.log(TopicPartition("t", 0)).gaps.append((40, 50))
    ran = Ran(source, partitions=(0,))
    assert isinstance(ran.error, ArchiveError)
    assert "offsets [40, 50)" in str(ran.error)
    assert "--on-gap skip" in str(ran.error)
    assert ran.written == list(range(40))


def test_transaction_that_no_source_has_as_a_whole_is_an_error(
    source: TieredTopicSource, world: World
) -> None:
    world.log(TopicPartition("t", 0)).undecided = 40
    ran = Ran(source, partitions=(0,))
    assert isinstance(ran.error, LeadershipUnavailableError)
    assert "the transaction at offset 40" in str(ran.error)
    assert ran.written == list(range(40))


def test_unavailable_cluster_is_reported(
    source: TieredTopicSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> list[KafkaTopicPartition]:
        raise KafkaException("away")

    for name in ("get_watermark_offsets", "list_topics", "offsets_for_times"):
        monkeypatch.setattr(type(source._consumer), name, away)
    with pytest.raises(LeadershipUnavailableError, match="are not known: away"):
        source.bounds(TP)
    with pytest.raises(LeadershipUnavailableError, match="nowhere:1 returns no metadata"):
        source.partitions()
    with pytest.raises(LeadershipUnavailableError, match="are not known"):
        source.offset_for_time(TP, 5)
