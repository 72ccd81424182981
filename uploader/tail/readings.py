"""Read the packs of stores for partitions whose tail begins, beside the cycles: it takes long where
there are many packs.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from sidetier.archive.tail.inventory import TailContents, TailInventory
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import SegmentError, SegmentGoneError
from sidetier.segments.offsets import OffsetRange, TopicPartition
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.state.segment import Backoff
from sidetier.uploader.tail.begin import TailBegin, find_begin
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.led_tail import LedTail
from sidetier.uploader.tail.packs import TailPlace

log: Final = structlog.get_logger()
_LONGEST_HOLD: Final = 30.0

GapsOf = Callable[[TailPlace, TopicPartition], Sequence[OffsetRange]]
"""Reads the recorded gaps of an archive."""


class _Reading:
    """Reads the live packs of one store for partitions whose tail begins. `run` is for any thread.

    Attributes:
        tails: The partitions.
        begins: Where each begins, or why that is not known. Empty before the end.
        error: Why the packs cannot be read; None if they were.
        ended: Whether it has ended.
    """

    def __init__(
        self,
        tails: Sequence[LedTail],
        inventory: TailInventory,
        gaps_of: Callable[[TopicPartition], Sequence[OffsetRange]],
        now_ms: int,
    ) -> None:
        self.tails = tails
        self.begins: list[TailBegin | Exception] = []
        self.error: Exception | None = None
        self.ended = False
        self._inventory = inventory
        self._gaps_of = gaps_of
        self._now_ms = now_ms
        self._known = [(tail.led, tail.history) for tail in tails]

    def run(self) -> None:
        """Read the packs, and find where each tail begins."""
        wanted = {tail.tp for tail in self.tails}
        try:
            contents = self._inventory.read(partitions=wanted)
            self.begins = [self._begin(contents, *known) for known in self._known]
        except Exception as error:  # noqa: BLE001 - the reading begins again
            self.error = error
        finally:
            self.ended = True

    def _begin(
        self, contents: TailContents, led: TailPartition, history: EpochHistory
    ) -> TailBegin | Exception:
        try:
            rows = contents.rows.get(led.tp, ())
            return find_begin(led, history, rows, self._gaps_of, contents.unread, self._now_ms)
        except Exception as error:  # noqa: BLE001 - it holds this partition
            return error


class PackReadings:
    """Readings of packs, one of each store at a time.

    Args:
        inventory_of: Reads the live packs of a store.
        gaps_of: Reads the recorded gaps of an archive.
        background: Runs work on another thread.
        clock: The time.
    """

    def __init__(
        self,
        inventory_of: Callable[[TailPlace], TailInventory],
        gaps_of: GapsOf,
        background: Callable[[Callable[[], None]], None],
        clock: Clock,
    ) -> None:
        self._inventory_of = inventory_of
        self._gaps_of = gaps_of
        self._background = background
        self._now = clock.monotonic
        self._wall = clock.wall
        self._under_way: dict[int, _Reading] = {}
        self._holds: dict[int, Backoff] = {}

    def take(
        self, place: TailPlace, tails: Iterable[LedTail]
    ) -> list[tuple[LedTail, TailBegin | Exception]]:
        """Return where tails of a store begin, or why that cannot be found, as far as it is known,
        and begin a reading for the others.
        """
        key, found = id(place.store), list[tuple[LedTail, TailBegin | Exception]]()
        reading = self._under_way.get(key)
        if reading is not None and not reading.ended:
            for tail in reading.tails:
                tail.is_late = True
            return found
        if reading is not None:
            found += self._ended(key, reading)
        done = {id(tail) for tail, _ in found}
        waiting = [tail for tail in tails if tail.begin is None and id(tail) not in done]
        if self._hold(key).until <= self._now():
            ready = [tail for tail in waiting if _has_history(tail, found)]
            if ready:
                found += self._begun(key, place, ready)
        return found

    def _begun(
        self, key: int, place: TailPlace, tails: Sequence[LedTail]
    ) -> Iterable[tuple[LedTail, TailBegin | Exception]]:
        gaps_of, now_ms = partial(self._gaps_of, place), int(self._wall() * 1000)
        reading = _Reading(tails, self._inventory_of(place), gaps_of, now_ms)
        self._background(reading.run)
        self._under_way[key] = reading
        return self._ended(key, reading) if reading.ended else ()

    def _ended(
        self, key: int, reading: _Reading
    ) -> Iterable[tuple[LedTail, TailBegin | Exception]]:
        del self._under_way[key]
        hold = self._hold(key)
        if reading.error is None:
            hold.clear()
        else:
            hold.fail(str(reading.error), self._now(), _LONGEST_HOLD)
            log.warning("tail.unavailable", error=str(reading.error))
        begins = [begin for begin in reading.begins if isinstance(begin, TailBegin)]
        unread = [begin.unread for begin in begins if begin.unread is not None]
        if unread:  # one line: a pack may leave all partitions without a tail
            log.warning("tail.unread_pack", partitions=len(unread), first=unread[0])
        return zip(reading.tails, reading.begins, strict=reading.error is None)

    def _hold(self, key: int) -> Backoff:
        return self._holds.setdefault(key, Backoff())


def _has_history(tail: LedTail, failed: list[tuple[LedTail, TailBegin | Exception]]) -> bool:
    """Read the epoch history. Return whether it has the epoch in which this broker leads: a broker
    writes an epoch soon after it leads in it. Note an error in `failed`.
    """
    try:
        history = read_local_epochs(tail.led.directory)
    except SegmentGoneError:
        return False
    except (SegmentError, OSError) as error:
        failed.append((tail, error))
        return False
    if not history.entries or history.entries[-1][0] != tail.led.leader_epoch:
        return False
    tail.history = history
    return True
