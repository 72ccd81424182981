"""Time from roll to stored, measured from outside: traffic at a steady rate, and an observer."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from subprocess import PIPE, Popen

from lib import steady
from lib.clock import monotonic, pause
from lib.repeated import Repeated
from lib.sidecar import Sidecar
from lib.stores import RealStore
from sidetier.segments.offsets import TopicPartition

_LEFT_OUT_SECONDS = 5.0
_LAST_SECONDS = 60.0

Segment = tuple[int, int]
"""Partition and base offset."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic that is produced to an existing topic."""

    topic: str
    partitions: int = 8
    rate_bytes: int = 30_000_000
    value_bytes: int = 10_000


@dataclass(slots=True)
class Seen:
    """Observed moments, in monotonic seconds."""

    rolled: dict[Segment, float] = field(default_factory=dict)
    stored: dict[Segment, float] = field(default_factory=dict)

    def is_stored(self, until: float) -> bool:
        """Return whether everything that was rolled before `until` is stored."""
        due = [segment for segment, rolled in list(self.rolled.items()) if rolled <= until]
        return all(segment in self.stored for segment in due)


class Observer:
    """Observes the log dir and the store's directory."""

    def __init__(self, log_dir: Path, store: RealStore, traffic: Traffic) -> None:
        self._log_dir = log_dir
        self._store = store
        self._topic = traffic.topic
        self._bases: dict[int, list[int]] = {number: [] for number in range(traffic.partitions)}
        self._done = dict.fromkeys(range(traffic.partitions), 0)
        self.seen = Seen()

    def observe(self) -> None:
        """Observe every partition once."""
        for partition in self._bases:
            self._observe_rolls(partition)
            self._observe_stored(partition)

    def _observe_rolls(self, partition: int) -> None:
        names = (self._log_dir / f"{self._topic}-{partition}").glob("*.log")
        bases, moment = sorted(int(path.stem) for path in names), monotonic()
        for closed, _ in pairwise(bases):
            self.seen.rolled.setdefault((partition, closed), moment)
        self._bases[partition] = bases

    def _observe_stored(self, partition: int) -> None:
        done = self._store.stored_up_to(TopicPartition(self._topic, partition))
        if done == self._done[partition]:
            return
        self._done[partition], moment = done, monotonic()
        for closed, after in pairwise(self._bases[partition]):
            if after <= done:
                self.seen.stored.setdefault((partition, closed), moment)


@dataclass(frozen=True, slots=True)
class Passage:
    """Times of one segment, in seconds."""

    partition: int
    base_offset: int
    rolled_to_stored: float
    upload: float

    @property
    def excess(self) -> float:
        """Seconds that the upload does not account for."""
        return self.rolled_to_stored - self.upload


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of traffic beside a sidecar.

    Attributes:
        seen: When segments were rolled and stored.
        until: Segments that were rolled before are stored.
        latencies: Seconds from the due moment of each record to its acknowledgement.
        seconds: How long records were produced.
    """

    seen: Seen
    until: float
    latencies: Sequence[float]
    seconds: float

    @property
    def rolled_to_stored(self) -> list[float]:
        """Seconds from roll to stored, of each segment."""
        rolled = self.seen.rolled.items()
        return [self.seen.stored[one] - at for one, at in rolled if at <= self.until]


def watch(
    sidecar: Sidecar,
    log_dir: Path,
    store: RealStore,
    traffic: Traffic,
    bootstrap: str,
    seconds: float,
) -> Watched:
    """Produce for a while beside a ready sidecar. Segments rolled in the last 5 s are left out.

    Raises:
        TimeoutError: A segment was not stored although there was time.
    """
    rate = traffic.rate_bytes // traffic.value_bytes
    arguments = [bootstrap, traffic.topic, traffic.partitions, rate, traffic.value_bytes]
    line = [sys.executable, steady.__file__, *map(str, arguments)]
    observer = Observer(log_dir, store, traffic)
    with Repeated(observer.observe):
        with Popen(line, stdout=PIPE, text=True) as producer:
            pause(seconds)
            until = monotonic() - _LEFT_OUT_SECONDS
            producer.terminate()
            text, _ = producer.communicate(timeout=60)
        latencies = [float(line.split()[1]) for line in text.splitlines()]
        sent = len(latencies) * traffic.value_bytes / seconds
        print(f"{sent / 1e6:.1f} MB/s were produced", file=sys.stderr)
        sidecar.wait_until(lambda: observer.seen.is_stored(until), _LAST_SECONDS, "the last upload")
    return Watched(observer.seen, until, latencies, seconds)


def observe(
    sidecar: Sidecar,
    log_dir: Path,
    store: RealStore,
    traffic: Traffic,
    bootstrap: str,
    seconds: float,
) -> list[Passage]:
    """Watch traffic, and return the passage of each segment. Raises as `watch`."""
    watched = watch(sidecar, log_dir, store, traffic, bootstrap, seconds)
    uploads = {
        (row["partition"], row["base_offset"]): row["seconds"]
        for row in sidecar.events("segment.uploaded")
        if row["topic"] == traffic.topic
    }
    return _passages(watched.seen, uploads, watched.until)


def _passages(seen: Seen, uploads: Mapping[Segment, float], until: float) -> list[Passage]:
    """Return the passage of every segment that was rolled before `until`."""
    passages = []
    for segment, rolled in sorted(seen.rolled.items()):
        if rolled > until:
            continue
        if segment not in seen.stored or segment not in uploads:
            raise RuntimeError(f"partition and base {segment}: rolled, but never seen stored")
        passages.append(Passage(*segment, seen.stored[segment] - rolled, uploads[segment]))
    return passages


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile of at least two values."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]
