"""Record batches whose decompressed size exceeds the reader's limit."""

import pytest

from sidetier.archive.reader import Failed, ReachedEnd
from sidetier.segments.errors import BatchTooLargeError, ConfigurationError
from sidetier.segments.headers import Compression
from sidetier.segments.isolation import IsolationLevel
from tests.harness.made_archive import (
    TP,
    MadeArchive,
    batches,
    offsets,
    read_from,
    reading,
    take_to_end,
)
from tests.harness.record_batches import MadeBatch, MadeRecord


@pytest.fixture
def archive() -> MadeArchive:
    """Offsets 0 to 39; offsets 20 to 24 are one batch of slightly more than 5 MB."""
    made = MadeArchive()
    value = bytes(1 << 20)
    large = MadeBatch(
        tuple(MadeRecord(at, at, value=value) for at in range(20, 25)), Compression.ZSTD
    )
    made.segment(0, [*batches(0, 20), large, *batches(25, 40)])
    made.mark(0, 40)
    return made


@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_error_for_a_large_batch_names_the_limit(
    archive: MadeArchive, isolation: IsolationLevel
) -> None:
    taken = read_from(archive, 3, isolation=isolation, max_batch_bytes=5 << 20)
    assert offsets(taken) == list(range(3, 20))
    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert type(failed.error) is BatchTooLargeError
    assert failed.next_offset == 20
    assert not failed.error.retry
    told = str(failed.error)
    assert archive.key(0) in told
    assert "offsets [20, 25) are more than 5242880 bytes" in told
    assert "tiered.storage.max.batch.bytes, --max-batch-bytes" in told


def test_large_batch_is_read_with_a_higher_limit(archive: MadeArchive) -> None:
    assert offsets(read_from(archive, 0, max_batch_bytes=6 << 20)) == list(range(40))
    assert offsets(read_from(archive, 0)) == list(range(40))


def test_reader_stops_at_a_large_batch_until_it_seeks(archive: MadeArchive) -> None:
    with reading(archive.store, max_batch_bytes=5 << 20) as reader:
        reader.assign(archive.tp, 0)
        take_to_end(reader)
        assert reader.take(100, 0.1) == []
        reader.resume(TP)
        [again] = reader.take(100, 20.0)
        assert isinstance(again, Failed)
        reader.seek(TP, 25)
        taken = take_to_end(reader)
        assert offsets(taken) == list(range(25, 40))
        assert isinstance(taken[-1], ReachedEnd)


def test_search_by_timestamp_has_the_same_limit(archive: MadeArchive) -> None:
    with reading(archive.store, max_batch_bytes=5 << 20) as reader:
        assert reader.offset_for_time(TP, 7) == 7
        with pytest.raises(BatchTooLargeError, match=r"offsets \[20, 25\)"):
            reader.offset_for_time(TP, 23)


@pytest.mark.parametrize("limit", [0, -1, 1 << 31])
def test_limit_outside_the_valid_range_is_refused(limit: int) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"max\.batch\.bytes"),
        reading(MadeArchive().store, max_batch_bytes=limit),
    ):
        pass
