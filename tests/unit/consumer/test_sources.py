"""The source of a partition's next read, decided from the contents of both sources."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sidetier.consumer.sources import (
    Archive,
    Ask,
    Decision,
    Facts,
    FromKafka,
    FromStore,
    Missing,
    Mode,
    NoReset,
    Reset,
    RetryLater,
    decide,
)
from sidetier.segments.offsets import Offset, OffsetRange

PREFERRED = Mode.TIERED_STORAGE_PREFERRED
ONLY = Mode.TIERED_STORAGE_ONLY
FIRST = Mode.KAFKA_PREFERRED


def offsets(start: int, end: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(end))


KAFKA = offsets(60, 100)
STORED = Archive(offsets(20, 80))

CASES: list[tuple[Mode, Facts, Decision]] = [
    (FIRST, Facts(5), FromKafka(5)),
    (FIRST, Facts(30, refused=True), Ask(kafka=True, store=True)),
    (FIRST, Facts(30, KAFKA, STORED, refused=True), FromStore(30, until=60)),
    (
        FIRST,
        Facts(90, offsets(60, 70), Archive(offsets(20, 95)), refused=True),
        FromStore(90),
    ),
    (FIRST, Facts(65, KAFKA, STORED), FromKafka(65)),
    (PREFERRED, Facts(30), Ask(store=True)),
    (PREFERRED, Facts(30, archive=STORED), FromStore(30)),
    (PREFERRED, Facts(80, archive=STORED), FromKafka(80)),
    (PREFERRED, Facts(5, archive=STORED), FromKafka(5)),
    (PREFERRED, Facts(5, archive=Archive(unavailable=True)), Ask(kafka=True)),
    (PREFERRED, Facts(70, KAFKA, Archive(unavailable=True)), FromKafka(70)),
    (ONLY, Facts(80, archive=STORED), FromStore(80)),
    (ONLY, Facts(90, archive=STORED), Ask(kafka=True)),
    (ONLY, Facts(90, KAFKA, STORED), FromStore(90)),
    (
        ONLY,
        Facts(190, KAFKA, STORED),
        FromStore(20, reset="offset 190 is above Kafka's end, 100"),
    ),
    (FIRST, Facts(None, KAFKA, STORED), FromStore(20, until=60)),
    (PREFERRED, Facts(None, offsets(10, 100), STORED), FromKafka(10)),
    (PREFERRED, Facts(-2, KAFKA, STORED), FromStore(20)),
    (PREFERRED, Facts(-1, KAFKA), FromKafka(100)),
    (ONLY, Facts(-1, archive=STORED), FromStore(80)),
]


@pytest.mark.parametrize(("mode", "facts", "decision"), CASES)
def test_decisions_follow_the_table(mode: Mode, facts: Facts, decision: Decision) -> None:
    assert decide(mode, Reset.EARLIEST, facts) == decision


@pytest.mark.parametrize("mode", [FIRST, PREFERRED])
def test_offsets_the_archive_has_not_reached_yet_are_not_settled(mode: Mode) -> None:
    facts = Facts(50, KAFKA, Archive(offsets(20, 50)), refused=True)
    assert decide(mode, Reset.LATEST, facts) == Missing(50, 60, settled=False)


def test_gap_covers_the_offsets_that_both_sources_lack() -> None:
    archive = Archive(offsets(20, 80), gap=offsets(30, 40))
    facts = Facts(30, offsets(35, 100), archive, refused=True)
    assert decide(PREFERRED, Reset.LATEST, facts) == Missing(30, 35, settled=True)
    assert decide(ONLY, Reset.LATEST, Facts(30, archive=archive)) == Missing(30, 40, settled=True)


def test_offset_within_kafkas_bounds_is_retried() -> None:
    facts = Facts(90, KAFKA, STORED, refused=True)
    assert isinstance(decide(PREFERRED, Reset.EARLIEST, facts), RetryLater)


def test_nothing_is_reset_while_the_store_may_have_the_offset() -> None:
    facts = Facts(5, KAFKA, Archive(unavailable=True), refused=True)
    for mode in (FIRST, PREFERRED):
        assert isinstance(decide(mode, Reset.EARLIEST, facts), RetryLater)
    assert isinstance(
        decide(FIRST, Reset.EARLIEST, Facts(None, KAFKA, Archive(unavailable=True))), RetryLater
    )


_spans = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(
    lambda two: offsets(min(two), max(two))
)
_stored = st.none() | _spans.filter(lambda span: span.start < span.end)


@given(
    mode=st.sampled_from([FIRST, PREFERRED]),
    reset=st.sampled_from([Reset.EARLIEST, Reset.LATEST]),
    wanted=st.integers(0, 60),
    kafka=_spans,
    stored=_stored,
    verified=st.booleans(),
)
def test_no_reset_leads_to_an_archive_that_kafka_does_not_continue(
    mode: Mode,
    reset: Reset,
    wanted: int,
    kafka: OffsetRange,
    stored: OffsetRange | None,
    *,
    verified: bool,
) -> None:
    archive = Archive(stored, verified=verified and stored is not None)
    decision = decide(mode, reset, Facts(wanted, kafka, archive, refused=True))
    if not isinstance(decision, FromStore) or not decision.reset or wanted <= kafka.end:
        return
    assert verified
    assert stored is not None
    assert stored.end <= kafka.end


@pytest.mark.parametrize("mode", [FIRST, PREFERRED, ONLY])
def test_offset_of_a_deleted_topic_is_reset_although_the_new_topic_has_it(mode: Mode) -> None:
    facts = Facts(70, KAFKA, STORED, recreated=True)
    decision = decide(mode, Reset.EARLIEST, facts)
    assert isinstance(decision, FromStore)
    assert decision.offset == 20
    assert "deleted and created again" in decision.reset
    assert isinstance(decide(mode, Reset.ERROR, facts), NoReset)


@given(
    mode=st.sampled_from([FIRST, PREFERRED, ONLY]),
    reset=st.sampled_from(Reset),
    wanted=st.none() | st.integers(0, 60),
    kafka=_spans,
    stored=_stored,
    refused=st.booleans(),
)
def test_decision_never_skips_an_offset_of_either_source(
    mode: Mode,
    reset: Reset,
    wanted: int | None,
    kafka: OffsetRange,
    stored: OffsetRange | None,
    *,
    refused: bool,
) -> None:
    facts = Facts(wanted, kafka, Archive(stored), refused=refused)
    decision = decide(mode, reset, facts)
    assert not isinstance(decision, Ask)
    if wanted is None or isinstance(decision, RetryLater | NoReset):
        return
    held = stored is not None and wanted in stored
    if isinstance(decision, Missing):
        assert decision.first == wanted < decision.end
        assert not held
        assert not (mode is not ONLY and not refused and wanted in kafka)
    elif not decision.reset:
        assert decision.offset == wanted
    else:
        assert not held
