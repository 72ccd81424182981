from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.image import imread

from devtools.demo.picture import Held, Sample, deletions, draw, sampled, segment_bytes
from devtools.demo.records import HOUR, orders
from sidetier.segments.errors import ConfigurationError, StoreUnavailableError
from tests.harness.waiting import wait_until

START = datetime(2026, 11, 21, 14, tzinfo=UTC)
COUNTS = {START + timedelta(minutes=minute): 500 + 10 * minute for minute in range(60)}
BROKER, STORE = (0xC8, 0x55, 0x3D), (0x2A, 0x6F, 0x97)


def held(produced: int, deleted: int, archived: int) -> Held:
    pinned = max(deleted - archived, 0)
    return Held(produced, deleted, archived, pinned, (produced - deleted) * 1000, archived * 1000)


def samples() -> list[Sample]:
    """1,000 records per second for 10 s, stored 1 s later; the broker deletes records older than 5
    s each second.
    """
    return [
        Sample(
            half / 2,
            held(
                produced=min(half * 500, 10_000),
                deleted=max(half // 2 - 5, 0) * 1000,
                archived=min(max(half * 500 - 1000, 0), 10_000),
            ),
        )
        for half in range(31)
    ]


def pixels_of(file: Path, colour: tuple[int, int, int]) -> npt.NDArray[np.bool_]:
    pixels = np.asarray(imread(file))[:, :, :3]
    return np.asarray(np.all(np.abs(pixels - np.array(colour) / 255) < 0.02, axis=2))


def test_brokers_curve_falls_to_zero_and_the_stores_stays(tmp_path: Path) -> None:
    file = tmp_path / "tiering.png"
    draw(samples(), None, None, "orders", file)
    broker, store = pixels_of(file, BROKER), pixels_of(file, STORE)
    half = broker.shape[0] // 2  # above: records
    assert broker.any()
    assert store.any()
    right = np.flatnonzero(store[:half].any(axis=0))[-20:-5]  # the end of the store's curve
    highest = store[:half, right].argmax(axis=0).max()
    lowest = half - 1 - broker[:half, right][::-1].argmax(axis=0)
    assert highest < lowest.min() - 100, "at the end the broker has nothing, and the store all"


def test_each_deletion_is_marked(tmp_path: Path) -> None:
    some = samples()
    assert [one.seconds for one in deletions(some)] == [float(at) for at in range(6, 16)]
    file = tmp_path / "tiering.png"
    draw(some, None, None, "orders", file)
    marked = pixels_of(file, BROKER).sum()
    kept = [Sample(one.seconds, held(one.held.produced, 0, one.held.archived)) for one in some]
    draw(kept, None, None, "orders", file)
    assert deletions(kept) == []
    assert marked > 1.1 * pixels_of(file, BROKER).sum()


def test_spark_counts_are_drawn_as_a_bar_per_minute(tmp_path: Path) -> None:
    file = tmp_path / "tiering.png"
    draw(samples(), COUNTS, 24_680, "orders", file)
    bars = pixels_of(file, STORE)
    row = bars[int(bars.shape[0] * 0.9)]  # through all bars, low down
    assert int((row[1:] & ~row[:-1]).sum()) == 60


def test_unwritable_picture_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "tiering.png"
    with pytest.raises(ConfigurationError, match=f"--picture {file}: No such file or directory"):
        draw(samples(), None, None, "orders", file)


def test_samples_are_taken_until_the_end_and_failed_ones_left_out() -> None:
    def looks() -> Iterator[Held | Exception]:
        yield held(1, 0, 0)
        yield StoreUnavailableError("away")
        while True:
            yield held(2, 1, 1)

    following = looks()

    def look() -> Held:
        found = next(following)
        if isinstance(found, Exception):
            raise found
        return found

    with sampled(look) as taken:
        wait_until(lambda: len(taken) >= 2, 20, "two samples")
    assert [one.held for one in taken[:2]] == [held(1, 0, 0), held(2, 1, 1)]
    count = len(taken)
    assert count >= 3, "one more at the end"
    assert [one.seconds for one in taken] == sorted(one.seconds for one in taken)


def test_bytes_count_existing_segments_only(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "00.log").write_bytes(bytes(10))
    (tmp_path / "orders-0" / "10.log.deleted").write_bytes(bytes(20))
    (tmp_path / "orders-0" / "00.index").write_bytes(bytes(40))
    assert segment_bytes([tmp_path], "orders-*/*.log") == 10


def test_orders_are_spread_over_the_hour_and_increase() -> None:
    moments = [order.timestamp for order in orders(1, 3600, 3, end=10 * HOUR)]
    assert moments == sorted(moments)
    assert 9 * HOUR <= moments[0] < moments[-1] < 10 * HOUR
    minutes = [moment // 60_000 for moment in moments]
    each = [minutes.count(minute) for minute in sorted(set(minutes))]
    assert len(each) == 60
    assert max(each) > 2 * min(each)
