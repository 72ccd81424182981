"""The source that each mode reads, and when it switches to the other one."""

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, Message

from sidetier.segments.errors import BatchTooLargeError
from tests.harness.one_log import Later
from tests.harness.tiered import TP, Tiered, at, tiered, world_of

READING = ("KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED")


def assigned(mode: str, offset: int, **parts: object) -> Tiered:
    it = tiered(world_of(**parts), mode)  # type: ignore[arg-type]
    it.consumer.assign([at(offset)])
    return it


@pytest.mark.parametrize("mode", READING)
def test_records_deleted_in_kafka_come_from_the_store_and_the_rest_from_kafka(mode: str) -> None:
    it = assigned(mode, 0, kafka_start=60, store=(0, 80))
    assert it.read(130) == list(range(100))
    assert it.count("records_total", source="store") >= 60
    assert it.count("records_total", source="kafka") > 0


def test_kafka_preferred_reads_only_kafka_while_kafka_has_the_offset() -> None:
    it = assigned("KAFKA_PREFERRED", 10, store=(0, 80))
    assert it.read(130) == list(range(10, 100))
    assert it.count("records_total", source="store") == 0
    assert it.reader.looks == 0


def test_kafka_preferred_returns_as_soon_as_kafka_has_the_next_offset() -> None:
    it = assigned("KAFKA_PREFERRED", 0, kafka_start=30, store=(0, 100))
    assert it.read(130) == list(range(100))
    assert it.count("records_total", source="store") < 30 + it.reader.most


def test_tiered_storage_preferred_reads_the_store_up_to_its_end() -> None:
    it = assigned("TIERED_STORAGE_PREFERRED", 0, store=(0, 80))
    assert it.read(130) == list(range(100))
    assert it.count("records_total", source="store") == 80
    assert it.count("records_total", source="kafka") == 20


def test_tiered_storage_only_needs_no_broker() -> None:
    it = tiered(world_of(store=(0, 80)), "TIERED_STORAGE_ONLY", broker=False)
    it.consumer.assign([at(0)])
    assert it.read(130) == list(range(80))
    it.world.log(TP).upload(95)
    assert it.read(130) == list(range(80, 95))


def test_kafka_only_never_reads_the_store() -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 80)), "KAFKA_ONLY")
    it.consumer.assign([at(70)])
    assert it.read(50) == list(range(70, 100))
    assert it.reader.looks == 0


def test_kafka_preferred_falls_back_to_the_store_when_retention_overtakes_the_reader() -> None:
    it = assigned("KAFKA_PREFERRED", 0, store=(0, 50))
    assert it.read(5) == [0, 1, 2, 3, 4]
    log = it.world.log(TP)
    log.upload(90)
    log.retain(90)
    assert it.read(150) == list(range(5, 100))
    assert it.count("misses_total", source="kafka") >= 1
    assert it.count("switches_total", to="store") >= 1


@pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
def test_beginning_is_that_of_the_union_of_both_sources(mode: str) -> None:
    it = assigned(mode, OFFSET_BEGINNING, kafka_start=60, store=(20, 80))
    assert it.read(3)[0] == 20


def test_beginning_is_kafkas_if_the_archive_began_later() -> None:
    it = assigned("TIERED_STORAGE_PREFERRED", OFFSET_BEGINNING, store=(40, 80))
    assert it.read(130) == list(range(100))


@pytest.mark.parametrize(
    ("mode", "end"), [(READING[0], 100), (READING[1], 100), ("TIERED_STORAGE_ONLY", 80)]
)
def test_end_is_that_of_the_modes_sources(mode: str, end: int) -> None:
    it = assigned(mode, OFFSET_END, store=(0, 80))
    assert it.read(5) == []
    log = it.world.log(TP)
    log.produce(5)
    log.upload(105)
    assert it.read(60) == list(range(end, 105))


@pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
def test_tail_offset_counts_back_from_the_end(mode: str) -> None:
    it = assigned(mode, -2000 - 30, store=(0, 80))
    assert it.read(3)[0] == (50 if mode == "TIERED_STORAGE_ONLY" else 70)


@pytest.mark.parametrize("mode", READING)
def test_error_names_the_offsets_that_neither_source_has(mode: str) -> None:
    it = assigned(mode, 30, kafka_start=60, store=(0, 50))
    assert it.read(60) == list(range(30, 50))
    error = it.error()
    assert error.offset() == 50
    assert error.error() is not None
    assert error.error().code() == KafkaError.OFFSET_OUT_OF_RANGE  # type: ignore[union-attr]
    assert "offsets [50, 60)" in error.error().str()  # type: ignore[union-attr]
    it.consumer.seek(at(60))
    assert it.read(60) == list(range(60, 100))


@pytest.mark.parametrize("mode", READING)
def test_offsets_in_neither_source_are_skipped_if_configured(mode: str) -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 50)), mode, {"tiered.storage.on.gap": "skip"})
    it.consumer.assign([at(30)])
    assert it.read(60) == list(range(30, 50))
    it.world.now += 61
    assert it.read(60) == list(range(60, 100))
    assert it.count("skipped_offsets_total") == 10


@pytest.mark.parametrize("mode", READING)
def test_offsets_that_are_not_archived_yet_are_waited_for(mode: str) -> None:
    it = assigned(mode, 30, kafka_start=60, store=(0, 50))
    assert it.read(80) == list(range(30, 50))
    it.world.log(TP).upload(70)
    assert it.read(150) == list(range(50, 100))
    assert it.count("skipped_offsets_total") == 0


def test_gap_of_the_store_is_read_from_kafka_if_kafka_has_it() -> None:
    it = tiered(world_of(store=(0, 80)), "TIERED_STORAGE_PREFERRED")
    it.world.log(TP).gaps.append((20, 30))
    it.consumer.assign([at(0)])
    assert it.read(150) == list(range(100))


@pytest.mark.parametrize("mode", READING)
def test_gap_of_the_store_below_kafkas_start_is_an_error(mode: str) -> None:
    """The consumer does not switch between the sources forever."""
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode)
    it.world.log(TP).gaps.append((20, 30))
    it.consumer.assign([at(0)])
    assert it.read(20) == list(range(20))
    before = it.world.now
    assert "offsets [20, 30)" in str(it.error().error())
    assert it.world.now - before < 5
    it.consumer.seek(at(30))
    assert it.read(110) == list(range(30, 100))


def test_gap_within_the_archive_is_an_error_at_once() -> None:
    it = tiered(world_of(store=(0, 80)), "TIERED_STORAGE_ONLY", broker=False)
    it.world.log(TP).gaps.append((20, 30))
    it.consumer.assign([at(0)])
    assert it.read(20) == list(range(20))
    before = it.world.now
    assert "offsets [20, 30)" in str(it.error().error())
    assert it.world.now - before < 5
    it.consumer.seek(at(30))
    assert it.read(60) == list(range(30, 80))


@pytest.mark.parametrize("mode", READING)
@pytest.mark.parametrize(("reset", "first"), [("earliest", 20), ("latest", 100)])
def test_offset_below_both_sources_is_reset(mode: str, reset: str, first: int) -> None:
    it = tiered(world_of(kafka_start=60, store=(20, 80)), mode, {"auto.offset.reset": reset})
    it.world.committed[TP] = 5
    it.consumer.assign([at(-1001)])
    it.read(40)
    it.world.log(TP).produce(1)
    assert first in {*it.read(200), 20 if reset == "earliest" else -1}
    assert it.count("offset_resets_total") == 1


@pytest.mark.parametrize("mode", READING)
@pytest.mark.parametrize(("reset", "first"), [("earliest", 20), ("latest", 100)])
def test_offset_above_both_sources_is_reset(mode: str, reset: str, first: int) -> None:
    it = tiered(world_of(kafka_start=60, store=(20, 80)), mode, {"auto.offset.reset": reset})
    it.world.committed[TP] = 500
    it.consumer.assign([at(-1001)])
    found = it.read(60)
    it.world.log(TP).produce(1)
    found += it.read(200)
    assert found[0] == first
    assert it.count("offset_resets_total") == 1


@pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
def test_out_of_range_is_an_error_with_reset_error(mode: str) -> None:
    it = tiered(world_of(kafka_start=60, store=(20, 80)), mode, {"auto.offset.reset": "error"})
    it.consumer.assign([at(5)])
    error = it.error()
    assert error.error().code() == KafkaError._AUTO_OFFSET_RESET  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
def test_group_without_commits_begins_by_the_reset_policy(mode: str) -> None:
    it = assigned(mode, -1001, kafka_start=60, store=(20, 80))
    assert it.read(3)[0] == 20
    assert it.count("offset_resets_total") == 0


@pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
def test_group_continues_at_its_committed_offset(mode: str) -> None:
    it = tiered(world_of(kafka_start=60, store=(20, 80)), mode)
    it.world.committed[TP] = 42
    it.consumer.assign([at(-1001)])
    assert it.read(3)[0] == 42


def test_retention_between_decision_and_fetch_switches_back_to_the_store() -> None:
    pool = Later()
    it = tiered(world_of(kafka_start=20, store=(0, 40)), "KAFKA_PREFERRED", pool=pool)
    it.consumer.assign([at(10)])
    found: list[int] = []
    for turn in range(400):
        message = it.consumer.poll(0.01)
        if message is not None and message.error() is None:
            found.append(int(message.offset() or 0))
        if turn % 7 == 0:
            pool.run()
        if turn in (30, 90, 150):
            log = it.world.log(TP)
            log.upload(log.store_end + 20)
            log.retain(log.store_end - 5)
    assert found == list(range(10, 100))


@pytest.mark.parametrize("mode", READING)
def test_records_the_store_deletes_before_the_read_reset_the_offset(mode: str) -> None:
    it = assigned(mode, 0, kafka_start=60, store=(0, 80))
    assert it.read(3) == [0, 1, 2]
    it.world.log(TP).gc(40)
    found = it.read(150)
    assert found[-1] == 99
    assert 40 in found
    assert it.count("offset_resets_total") == 1


def test_brokers_that_do_not_answer_are_no_undecided_transaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kafka has not refused the offset: it may have the whole transaction."""
    it = tiered(world_of(kafka_start=0, store=(0, 80)), "TIERED_STORAGE_PREFERRED")
    it.world.log(TP).undecided = 40
    it.consumer.assign([at(0)])
    assert it.read(3) == [0, 1, 2]
    it.world.brokers_away = True
    assert it.read(400) == list(range(3, 40))
    it.world.brokers_away = False
    assert it.read(400) == list(range(40, 100))
    assert "consumer.undecided_transaction" not in caplog.text


@pytest.mark.parametrize("mode", READING)
def test_transaction_that_no_source_has_as_a_whole_is_reported(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its beginning is in the store alone, and its end is on Kafka alone."""
    told: list[KafkaError] = []
    it = tiered(world_of(kafka_start=60, store=(0, 80)), mode, {"error_cb": told.append})
    it.world.log(TP).undecided = 40
    it.consumer.assign([at(0)])
    assert it.read(400) == list(range(40))
    assert told
    assert {error.code() for error in told} == {KafkaError.OFFSET_NOT_AVAILABLE}
    assert "the end of the transaction at offset 40 is not archived yet" in told[0].str()
    assert "consumer.undecided_transaction partition=t-0 offset=40" in caplog.text
    it.world.log(TP).undecided = None
    assert it.read(400) == list(range(40, 100))


@pytest.mark.parametrize("mode", [*READING, "TIERED_STORAGE_ONLY"])
def test_batch_above_the_limit_is_an_error_and_no_gap(mode: str) -> None:
    it = tiered(world_of(kafka_start=60, store=(0, 70)), mode, {"tiered.storage.on.gap": "skip"})
    it.consumer.assign([at(30)])
    it.world.store_error = BatchTooLargeError("offsets [30, 40) are more than 5 bytes")
    error = it.error().error()
    assert error is not None
    assert error.code() == KafkaError._BAD_MSG
    assert "offsets [30, 40) are more than 5 bytes" in error.str()
    it.world.now += 61
    assert [message.offset() for message in polled(it, 60)] == []
    it.world.store_error = None
    it.consumer.seek(at(30))
    assert it.read(100)[:40] == list(range(30, 70))
    assert it.count("skipped_offsets_total") == 0


def polled(it: Tiered, polls: int) -> list[Message]:
    """Records of the given number of polls; errors are left out."""
    found = [it.consumer.poll(0.5) for _ in range(polls)]
    return [message for message in found if message is not None and message.error() is None]
