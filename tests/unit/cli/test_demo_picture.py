from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from sidetier.cli.demo.picture import draw_minutes
from sidetier.cli.demo.records import HOUR, orders
from sidetier.segments.errors import ConfigurationError

START = datetime(2026, 11, 21, 14, tzinfo=UTC)
COUNTS = {START + timedelta(minutes=minute): 500 + 10 * minute for minute in range(60)}


def test_the_picture_shows_a_bar_for_each_minute(tmp_path: Path) -> None:
    file = tmp_path / "minutes.png"
    draw_minutes(COUNTS, "orders", file)
    pixels = np.asarray(imread(file))
    assert pixels.shape[:2] == (432, 1080)
    colour = np.array([0x2A, 0x6F, 0x97]) / 255
    bars = np.all(np.abs(pixels[:, :, :3] - colour) < 0.02, axis=2)
    row = bars[350]  # through all bars, low down
    assert int((row[1:] & ~row[:-1]).sum()) == 60
    highest = [int(column.argmax()) for column in bars.T if column.any()]
    assert highest[0] > highest[-1]  # the last minute has the most


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "minutes.png"
    with pytest.raises(ConfigurationError, match=f"--picture {file}: No such file or directory"):
        draw_minutes(COUNTS, "orders", file)


def test_orders_are_spread_over_the_hour_and_rise() -> None:
    moments = [order.timestamp for order in orders(1, 3600, 3, end=10 * HOUR)]
    assert moments == sorted(moments)
    assert 9 * HOUR <= moments[0] < moments[-1] < 10 * HOUR
    minutes = [moment // 60_000 for moment in moments]
    each = [minutes.count(minute) for minute in sorted(set(minutes))]
    assert len(each) == 60
    assert max(each) > 2 * min(each)
