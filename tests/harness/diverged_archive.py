"""An archive after an unclean election, with its discarded end in quarantine."""

import threading
from collections import Counter
from collections.abc import Callable

from tests.harness.made_archive import MadeArchive, batches
from tests.harness.record_batches import MadeBatch, MadeRecord

FORK, END = 24, 50


def before_the_election(archive: MadeArchive, topic_id: str | None = None) -> None:
    """Store offsets 0 to 39, with the leader epochs 1 and 3."""
    archive.segments(0, 10, 20, 30, 40)
    archive.epoch_history((1, 0), (3, 12))
    archive.mark(30, 40, topic_id=topic_id)


def set_aside(archive: MadeArchive, topic_id: str | None = None) -> None:
    """Remove the segments above the divergence; the new leader's segments are not stored yet."""
    archive.mark(20, FORK, leader_epoch=4, topic_id=topic_id)
    archive.lose(30)
    archive.segment(20, batches(20, FORK, 4))


def elect_uncleanly(archive: MadeArchive, end: int = END, topic_id: str | None = None) -> None:
    """Store the final state: unchanged below the divergence, the new leader's segments above it."""
    set_aside(archive, topic_id)
    go_on(archive, end, topic_id)


def go_on(archive: MadeArchive, end: int = END, topic_id: str | None = None) -> None:
    """Store the new leader's segments above the divergence."""
    archive.segment(FORK, of_the_new_leader(FORK, end))
    archive.epoch_history((1, 0), (3, 12), (4, FORK))
    archive.mark(FORK, end, leader_epoch=4, topic_id=topic_id)


def of_the_new_leader(first: int, end: int) -> list[MadeBatch]:
    """Return batches whose values differ from those of `batches`."""
    rows = [MadeRecord(at, at, value=f"new-{at}".encode()) for at in range(first, end)]
    return [MadeBatch(tuple(rows[at : at + 5])) for at in range(0, len(rows), 5)]


def present(end: int = END) -> Counter[tuple[int, bytes]]:
    """Return offsets and values after the new leader has written up to `end`, each once."""
    old = [(at, f"value-{at}".encode()) for at in range(FORK)]
    return Counter(old + [(at, f"new-{at}".encode()) for at in range(FORK, end)])


class Between(threading.Event):
    """A `stop` event that runs one of the steps at each wait between rounds, then stops."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.left = list(steps)

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        if self.left:
            self.left.pop(0)()
        else:
            self.set()
        return self.is_set()


def nothing() -> None:
    """Do nothing between two rounds."""
