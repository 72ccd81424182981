"""What the broker and the store hold while the demo runs: samples, and a picture of them."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from sidetier.segments.errors import ConfigurationError, SidetierError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BROKER: Final = "#c8553d"
_STORE: Final = "#2a6f97"
_PINNED: Final = "#e09f3e"
_GREY: Final = "#8a8a8a"
_MINUTE_IN_DAYS: Final = 1 / (24 * 60)
_MB: Final = 1_000_000
_INTERVAL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Held:
    """What broker and store hold at one moment, over all partitions.

    Attributes:
        produced: Records that the broker has ever had.
        deleted: Records that the broker has deleted.
        archived: Records below the archive ends.
        pinned: Records that the broker has deleted and that are not archived yet: the sidecar holds
            their files open.
        broker_bytes: Size of the broker's segments that are not marked for deletion.
        store_bytes: Size of the stored segments.
    """

    produced: int
    deleted: int
    archived: int
    pinned: int
    broker_bytes: int
    store_bytes: int

    @property
    def on_broker(self) -> int:
        """Records that the broker still has."""
        return self.produced - self.deleted


@dataclass(frozen=True, slots=True)
class Sample:
    """What was held; `seconds` is the time since sampling began."""

    seconds: float
    held: Held


def deletions(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples before which the broker has deleted records."""
    return [
        after for before, after in pairwise(samples) if after.held.deleted > before.held.deleted
    ]


@contextmanager
def sampled(look: Callable[[], Held]) -> Iterator[list[Sample]]:
    """Take samples on a thread while the context is open, and one at its end.

    A sample for which `look` fails is left out.
    """
    samples: list[Sample] = []
    stop = threading.Event()
    started = monotonic()

    def run() -> None:
        stopped = False
        while True:
            try:
                held = look()
            except (KafkaException, SidetierError, OSError):
                pass  # a server that does not answer for a moment leaves a gap in the picture
            else:
                samples.append(Sample(monotonic() - started, held))
            if stopped:
                return
            stopped = stop.wait(_INTERVAL_SECONDS)

    thread = threading.Thread(target=run, name="demo-timeline", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def segment_bytes(directories: Sequence[Path], pattern: str) -> int:
    """Return the bytes of the matching files; a file that disappears meanwhile is left out."""
    total = 0
    for directory in directories:
        for file in directory.glob(pattern):
            try:
                total += file.stat().st_size
            except FileNotFoundError:
                continue
    return total


def draw(
    samples: Sequence[Sample],
    counts: Mapping[datetime, int] | None,
    consumed: int | None,
    topic: str,
    file: Path,
) -> None:
    """Write a PNG: records and bytes on the broker and on the store over time, with each deletion.

    With `counts`, a third chart shows the records that Spark has counted in each minute, in UTC.
    With `consumed`, a line below shows how many records Kafka's console consumer has read.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 -- part of the extra `demo`, and slow to import

    mpl.use("Agg")  # a demo on a server has no screen
    from matplotlib.figure import Figure  # noqa: PLC0415

    heights = [3, 2] if counts is None else [3, 2, 2]
    figure = Figure(figsize=(9, 2 + 1.1 * sum(heights)), dpi=120, layout="constrained")
    records, size, *more = figure.subplots(len(heights), 1, height_ratios=heights)
    size.sharex(records)
    _draw_records(records, samples, topic)
    _draw_bytes(size, samples)
    for axes in more:
        _draw_minutes(axes, counts or {})
    for axes in (records, size, *more):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    if consumed is not None:
        text = f"Kafka's console consumer reads {consumed:,} records through sidetier serve"
        figure.supxlabel(f"{text}, after the broker was stopped", fontsize="medium")
    try:
        figure.savefig(file, format="png")
    except OSError as error:
        raise ConfigurationError(f"--picture {file}: {error.strerror or error}") from error


def _draw_records(axes: "Axes", samples: Sequence[Sample], topic: str) -> None:
    seconds = [sample.seconds for sample in samples]
    on_broker = [sample.held.on_broker for sample in samples]
    archived = [sample.held.archived for sample in samples]
    produced = [sample.held.produced for sample in samples]
    axes.plot(seconds, produced, color=_GREY, linestyle=":", label="produced")
    axes.plot(seconds, archived, color=_STORE, linewidth=2, label="on the store")
    axes.fill_between(seconds, on_broker, color=_BROKER, alpha=0.25, linewidth=0)
    axes.plot(seconds, on_broker, color=_BROKER, linewidth=2, label="on the broker")
    pinned = [sample.held.pinned for sample in samples]
    axes.plot(
        seconds,
        pinned,
        color=_PINNED,
        linestyle="--",
        label="deleted by the broker, held open by the sidecar",
    )
    gone = deletions(samples)
    axes.scatter(
        [sample.seconds for sample in gone],
        [sample.held.on_broker for sample in gone],
        marker="v",
        color=_BROKER,
        zorder=3,
        label="the broker deletes segments",
    )
    last = samples[-1].held
    axes.set_title(
        f"{topic}: {last.produced:,} records produced, {last.archived:,} on the store, "
        f"{last.on_broker:,} left on the broker",
        loc="left",
    )
    axes.set_ylabel("records")
    axes.tick_params(labelbottom=False)
    axes.set_ylim(top=1.35 * max(produced[-1], 1))  # room for the legend
    axes.legend(loc="upper left", ncols=2, frameon=False)


def _draw_bytes(axes: "Axes", samples: Sequence[Sample]) -> None:
    seconds = [sample.seconds for sample in samples]
    axes.plot(
        seconds, [sample.held.store_bytes / _MB for sample in samples], color=_STORE, linewidth=2
    )
    axes.plot(
        seconds, [sample.held.broker_bytes / _MB for sample in samples], color=_BROKER, linewidth=2
    )
    for sample in deletions(samples):
        axes.axvline(sample.seconds, color=_BROKER, linewidth=0.6, alpha=0.5)
    axes.set_ylabel("MB of segments")
    axes.set_xlabel("seconds since the producer started")


def _draw_minutes(axes: "Axes", counts: Mapping[datetime, int]) -> None:
    from matplotlib import dates  # noqa: PLC0415

    minutes = sorted(counts)
    axes.bar(
        dates.date2num(minutes),  # type: ignore[no-untyped-call]
        [counts[minute] for minute in minutes],
        width=0.9 * _MINUTE_IN_DAYS,
        align="edge",
        color=_STORE,
    )
    axes.xaxis.set_major_locator(dates.AutoDateLocator(tz=UTC))  # type: ignore[no-untyped-call]
    formatter = dates.DateFormatter("%H:%M", tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.set_title(
        f"Spark reads the store without a broker: {sum(counts.values()):,} records",
        loc="left",
        fontsize="medium",
    )
    axes.set_xlabel("minute of the records' timestamps, UTC")
    axes.set_ylabel("records")
