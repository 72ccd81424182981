"""The archived records by minute, as a picture."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sidetier.segments.errors import ConfigurationError

_COLOUR: Final = "#2a6f97"
_MINUTE_IN_DAYS: Final = 1 / (24 * 60)


def draw_minutes(counts: Mapping[datetime, int], title: str, file: Path) -> None:
    """Write a PNG with a bar for each minute; `counts` is by its beginning, in UTC.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 -- of the extra `demo`, and slow to import

    mpl.use("Agg")  # a demo on a server has no screen
    from matplotlib import dates  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    minutes = sorted(counts)
    axes.bar(
        dates.date2num(minutes),  # type: ignore[no-untyped-call]
        [counts[minute] for minute in minutes],
        width=0.9 * _MINUTE_IN_DAYS,
        align="edge",
        color=_COLOUR,
    )
    axes.xaxis.set_major_locator(dates.AutoDateLocator(tz=UTC))  # type: ignore[no-untyped-call]
    formatter = dates.DateFormatter("%H:%M", tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.set_title(title, loc="left")
    axes.set_xlabel("minute of the records' timestamps, UTC")
    axes.set_ylabel("records")
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(file, format="png")
    except OSError as error:
        raise ConfigurationError(f"--picture {file}: {error.strerror or error}") from error
