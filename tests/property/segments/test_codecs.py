import contextlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    decode_metadata,
    encode_metadata,
)
from sidetier.archive.objects.watermark import Watermark, decode_watermark, encode_watermark
from sidetier.segments.epoch_history import (
    EpochHistory,
    encode_leader_epoch_checkpoint,
    merge,
    parse_leader_epoch_checkpoint,
)
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition

bases = st.integers(0, 2**63 - 2).map(BaseOffset)
timestamps = st.integers(-1, 2**53)


@st.composite
def watermarks(draw: st.DrawFn) -> Watermark:
    base = draw(bases)
    return Watermark(
        base,
        draw(st.none() | st.integers(base + 1, 2**63 - 1).map(Offset)),
        draw(st.integers(-1, 2**31 - 1).map(LeaderEpoch)),
        draw(st.integers(-1, 2**31 - 1).map(BrokerId)),
        topic_id=draw(st.none() | st.text()),
        nonce=draw(st.none() | st.text()),
    )


@st.composite
def epoch_histories(draw: st.DrawFn) -> EpochHistory:
    epochs = sorted(draw(st.sets(st.integers(0, 100), max_size=8)))
    starts = sorted(
        draw(st.lists(st.integers(0, 1000), min_size=len(epochs), max_size=len(epochs)))
    )
    pairs = zip(epochs, starts, strict=True)
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in pairs))


@given(watermarks())
def test_watermark_round_trips_through_the_encoding(watermark: Watermark) -> None:
    data = encode_watermark(watermark)
    assert decode_watermark(data, "key") == watermark
    assert data.split(b"\n")[0] == f"{watermark.base_offset:020d}".encode()


@given(st.binary() | st.binary().map(lambda tail: b"0" * 20 + b"\n{" + tail + b"}"))
def test_watermark_decoder_survives_arbitrary_bytes(data: bytes) -> None:
    with contextlib.suppress(MalformedObjectError):
        watermark = decode_watermark(data, "key")
        assert data.startswith(f"{watermark.base_offset:020d}".encode())


@given(watermarks(), st.data())
def test_truncated_watermark_is_refused_or_read_as_pinterests(
    watermark: Watermark, data: st.DataObject
) -> None:
    whole = encode_watermark(watermark)
    cut = whole[: data.draw(st.integers(0, len(whole) - 2))]
    with contextlib.suppress(MalformedObjectError):
        assert decode_watermark(cut, "key") == Watermark(watermark.base_offset, None)


@given(st.lists(st.tuples(bases, timestamps), max_size=20))
def test_metadata_lists_every_segment_in_order(segments: list[tuple[BaseOffset, int]]) -> None:
    one_by_one = PartitionMetadata(TopicPartition("t", 0))
    for base, timestamp in segments:
        one_by_one = one_by_one.with_segment(base, timestamp)
        assert one_by_one.with_segment(base, timestamp) == one_by_one
    assert [e.base_offset for e in one_by_one.entries] == sorted({base for base, _ in segments})
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(one_by_one.entries))
    assert decode_metadata(encode_metadata(one_by_one), "key") == one_by_one


@given(st.binary())
def test_metadata_decoder_survives_arbitrary_bytes(data: bytes) -> None:
    with contextlib.suppress(MalformedObjectError):
        decode_metadata(data, "key")


@given(epoch_histories())
def test_epoch_history_round_trips_through_the_encoding(epoch_history: EpochHistory) -> None:
    text = encode_leader_epoch_checkpoint(epoch_history)
    assert parse_leader_epoch_checkpoint(text, "path") == epoch_history


@given(epoch_histories(), st.integers(0, 1000))
def test_log_shortened_by_retention_merges_to_the_whole_history(
    epoch_history: EpochHistory, log_start: int
) -> None:
    """Result of Kafka's `truncateFromStart`: the epoch of the log start, and the later epochs."""
    current = epoch_history.epoch_at(log_start)
    left = [entry for entry in epoch_history.entries if entry[1] > log_start]
    if current is not None:
        left.insert(0, (current, Offset(log_start)))
    assert merge(epoch_history, EpochHistory(tuple(left))) == epoch_history
    assert merge(EpochHistory(tuple(left)), epoch_history) == epoch_history


@given(epoch_histories(), st.integers(0, 1000), st.integers(1, 500))
def test_batches_written_in_an_epoch_history_fit_it(
    epoch_history: EpochHistory, start: int, length: int
) -> None:
    runs: list[tuple[LeaderEpoch, Offset]] = []
    for offset in range(start, start + length):
        epoch = epoch_history.epoch_at(offset)
        if epoch is not None and (not runs or runs[-1][0] != epoch):
            runs.append((epoch, Offset(offset)))
    assert epoch_history.violation(runs, start + length) is None
