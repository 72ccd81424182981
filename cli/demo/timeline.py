"""What the broker and the store hold while the demo runs, a few times a second."""

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
    """What is held at one moment, over all partitions.

    Attributes:
        produced: records that the broker has ever had.
        deleted: records that it has deleted since.
        archived: records below the archive ends.
        pinned: records that the broker has deleted and that are not archived yet: the sidecar holds
            their files open.
        broker_bytes: of its segments that are not marked for deletion.
        store_bytes: of stored segments.
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
    """What was held so many seconds after the first sample."""

    seconds: float
    held: Held


def deletions(samples: Sequence[Sample]) -> list[Sample]:
    """The samples before which the broker has deleted records."""
    return [
        after for before, after in pairwise(samples) if after.held.deleted > before.held.deleted
    ]


@contextmanager
def sampled(look: Callable[[], Held]) -> Iterator[list[Sample]]:
    """Take samples on a thread as long as the context is open, and one at its end; a look that
    fails is left out.
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
    """Bytes of the files that match below these directories; some may go away meanwhile."""
    total = 0
    for directory in directories:
        for file in directory.glob(pattern):
            try:
                total += file.stat().st_size
            except FileNotFoundError:
                continue
    return total
