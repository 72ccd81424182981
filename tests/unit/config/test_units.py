import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.config.units import (
    DiskFloor,
    format_duration,
    format_size,
    parse_disk_floor,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("200ms", 0.2),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("2d", 172800.0),
        ("1.5 s", 1.5),
        ("45", 45.0),
        (45, 45.0),
        (0.25, 0.25),
        (0, 0.0),
    ],
)
def test_durations_are_parsed_to_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", -1, "3 weeks", "1M", True, None, [], "1e3s", float("nan"), "\u0661s"]
)
def test_invalid_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16MiB", 16 * 1024**2),
        ("1GB", 10**9),
        ("1.5KiB", 1536),
        ("3TiB", 3 * 1024**4),
        ("7B", 7),
        ("12", 12),
        (12, 12),
    ],
)
def test_sizes_are_parsed_to_bytes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["1mb", "1Mi", "0.5B", -1, "-1", False, None, "5%", 0.5])
def test_invalid_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "floor"),
    [
        ("5%", DiskFloor(share=0.05)),
        ("0%", DiskFloor(share=0.0)),
        ("10GiB", DiskFloor(size=10 * 1024**3)),
        (0, DiskFloor(size=0)),
    ],
)
def test_disk_floor_is_a_size_or_a_share(text: object, floor: DiskFloor) -> None:
    assert parse_disk_floor(text) == floor


@pytest.mark.parametrize("text", ["100%", "-5%", "5 %x", "many", True, None])
def test_invalid_disk_floor_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="share of the disk"):
        parse_disk_floor(text)


def test_share_applies_to_the_size_of_the_file_system() -> None:
    assert DiskFloor(share=0.05).of(1000) == 50
    assert DiskFloor(size=70).of(1000) == 70


@given(st.integers(min_value=0, max_value=2**50))
def test_formatted_size_can_be_parsed(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(min_value=0, max_value=10**9))
def test_formatted_duration_can_be_parsed(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9, rel=1e-9)


def test_tiny_duration_keeps_its_value() -> None:
    assert parse_duration(format_duration(0.0005)) == pytest.approx(0.0005)
