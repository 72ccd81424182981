from datetime import UTC, datetime

import numpy as np
import pytest

from sidetier.pipeline.export.sinks.files.path_format import PathFormat
from sidetier.pipeline.export.sinks.files.zones import local_time, zone_named
from sidetier.segments.errors import ConfigurationError

MOMENT = datetime(2026, 1, 4, 17, 5, 9, 87_000)  # noqa: DTZ001  a Sunday, on some clock


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH", "year=2026/month=01/day=04/hour=17"),
        ("yyyy-MM-dd", "2026-01-04"),
        ("YY/M/d/H/k/h/K/m/s", "26/1/4/17/17/5/5/5/9"),
        ("HH'h'mm'm'ss's'SSS", "17h05m09s087"),
        ("'o''clock'=HH", "o'clock=17"),
        ("HH''mm", "17'05"),
        ("'week'=xxxx-'W'ww-e", "week=2026-W01-7"),
        ("DDD", "004"),
        ("EEE/EEEE/MMM/MMMM/a", "Sun/Sunday/Jan/January/PM"),
    ],
)
def test_patterns_are_rendered(pattern: str, path: str) -> None:
    assert PathFormat.parsed(pattern).render(MOMENT) == path


def test_week_year_differs_from_the_year_of_the_date() -> None:
    """In Joda, Y is the year of the era; in Java's own patterns it is the week year."""
    at = datetime(2027, 1, 1)  # noqa: DTZ001
    assert PathFormat.parsed("YYYY/xxxx-ww").render(at) == "2027/2026-53"


@pytest.mark.parametrize(
    ("locale", "words"), [("de", "Sonntag Januar"), ("fr_FR", "dimanche janvier")]
)
def test_month_and_day_names_follow_the_locale(locale: str, words: str) -> None:
    assert PathFormat.parsed("EEEE MMMM", locale).render(MOMENT) == words


@pytest.mark.parametrize(
    ("pattern", "locale", "reason"),
    [
        ("'year=YYYY", "en", "a quote is opened"),
        ("year=YYYY", "en", "'r' is an unknown letter"),
        ("YYYY//MM", "en", "empty directory"),
        ("/YYYY", "en", "empty directory"),
        ("'..'/YYYY", "en", "empty directory"),
        ("", "en", "empty directory"),
        ("MMMM", "xx_YY", "locale 'xx_YY'"),
    ],
)
def test_invalid_pattern_is_refused(pattern: str, locale: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        PathFormat.parsed(pattern, locale)


def at_berlin(year: int, month: int, day: int, hour: int, minute: int) -> str:
    utc = datetime(year, month, day, hour, minute, tzinfo=UTC)
    times = np.array([round(utc.timestamp() * 1000)], dtype=np.int64)
    [local] = local_time(times, zone_named("Europe/Berlin"))
    return datetime.fromtimestamp(local / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def test_clock_changes_are_handled() -> None:
    assert at_berlin(2026, 3, 29, 0, 59) == "2026-03-29T01:59"
    assert at_berlin(2026, 3, 29, 1, 0) == "2026-03-29T03:00"
    assert at_berlin(2026, 10, 25, 0, 30) == "2026-10-25T02:30"
    assert at_berlin(2026, 10, 25, 1, 30) == "2026-10-25T02:30"


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Europe/Berlim"):
        zone_named("Europe/Berlim")
