"""Samples of what the broker and the store hold while the demo runs, four per second."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Final

from confluent_kafka import KafkaException

from sidetier.segments.errors import SidetierError

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
