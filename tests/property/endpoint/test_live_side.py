"""The choice between archive and live log against a world that trims and commits in between."""

import random
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.endpoint.live.side import Age, LiveBounds, Side, choose, find
from sidetier.segments.offsets import MAX_OFFSET, Offset, OffsetRange

_ACTIVE = 10
"""Offsets of the active segment, which is not archived."""


@dataclass
class World:
    """A partition: the leader has [start, end), and the archive [0, archived)."""

    events: random.Random
    start: int = 0
    end: int = 0
    archived: int = 0
    views: list[tuple[LiveBounds, OffsetRange | None]] = field(default_factory=list)

    def step(self) -> None:
        """Produce, commit a segment, or delete archived records at the broker."""
        kind = self.events.randrange(6)
        if kind < 3:
            self.end = min(self.end + self.events.randrange(4), 120)
        elif kind < 5:
            closed = max(self.end - _ACTIVE, self.archived)
            self.archived += self.events.randrange(closed - self.archived + 1)
        else:
            self.start += self.events.randrange(max(self.archived - self.start, 0) + 1)
        self.views.append((self.live(), self.stored()))

    def live(self) -> LiveBounds:
        return LiveBounds(Offset(self.start), Offset(self.end), Offset(self.end))

    def stored(self) -> OffsetRange | None:
        return OffsetRange(Offset(0), Offset(self.archived)) if self.archived else None

    def known_live(self, *, new: bool) -> LiveBounds:
        """What is known of the leader, of any earlier moment or of now; the world goes on."""
        if not new:
            return self.events.choice(self.views)[0]
        now = self.live()
        self._go_on()
        return now

    def known_stored(self, *, new: bool) -> OffsetRange | None:
        if not new:
            return self.events.choice(self.views)[1]
        now = self.stored()
        self._go_on()
        return now

    def _go_on(self) -> None:
        for _ in range(self.events.randrange(4)):
            self.step()


def read_all(seed: int, *, store_below: int, steps: int = 60) -> list[tuple[int, Side]]:
    """Read offset after offset as the endpoint does; return them with their sides."""
    world = World(random.Random(seed))
    for _ in range(steps):
        world.step()
    offset = 0
    sides: list[tuple[int, Side]] = []
    while offset < world.end and len(sides) < 500:
        refused = False
        while True:
            found = find(
                Offset(offset),
                lambda age: world.known_live(new=age is Age.NOW),
                lambda age: world.known_stored(new=age is Age.NOW),
                lambda: Offset(store_below),
                refused=refused,
            ).side
            if found is not Side.LIVE or world.start <= offset < world.end:
                break
            assert not refused, "the leader refuses an offset, and the archive was not asked after"
            refused = True
        assert found in {Side.ARCHIVE, Side.LIVE}, f"{offset} is on neither side: {world}"
        if found is Side.ARCHIVE:
            assert offset < world.archived
        sides.append((offset, found))
        offset += 1
        if world.events.randrange(8) == 0:
            world.step()
    return sides


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), store_below=st.sampled_from([0, 10, 30, 100, int(MAX_OFFSET)]))
def test_every_offset_is_on_one_side_whatever_is_trimmed_meanwhile(
    seed: int, store_below: int
) -> None:
    sides = read_all(seed, store_below=store_below)
    assert [offset for offset, _ in sides] == list(range(len(sides)))


def test_both_sides_are_drawn() -> None:
    drawn = {side for seed in range(20) for _, side in read_all(seed, store_below=0)}
    assert drawn == {Side.ARCHIVE, Side.LIVE}


def test_an_offset_between_archive_and_log_start_is_on_neither_side() -> None:
    archived = OffsetRange(Offset(0), Offset(10))
    bounds = LiveBounds(Offset(15), Offset(20), Offset(20))
    for offset, side in ((9, Side.ARCHIVE), (10, Side.NEITHER), (15, Side.LIVE)):
        found = find(Offset(offset), lambda _age: bounds, lambda _age: archived, lambda: Offset(0))
        assert found.side is side


def test_an_unknown_leader_is_never_out_of_range() -> None:
    archived = OffsetRange(Offset(5), Offset(10))
    for offset, side in ((4, Side.UNKNOWN), (5, Side.ARCHIVE), (10, Side.UNKNOWN)):
        found = find(Offset(offset), lambda _age: None, lambda _age: archived, lambda: Offset(0))
        assert found.side is side


def test_the_live_log_is_asked_before_the_archive_and_only_as_often_as_needed() -> None:
    archived = OffsetRange(Offset(0), Offset(10))
    bounds = LiveBounds(Offset(15), Offset(20), Offset(20))
    recent = [("live", Age.RECENT), ("archive", Age.RECENT)]
    known = [("live", Age.RECENT), ("archive", Age.KNOWN)]
    now = [("live", Age.NOW), ("archive", Age.NOW)]
    for offset, refused, expected in (
        (9, False, recent),
        (15, False, known),
        (10, False, recent + now),
        (15, True, now),
    ):
        asked: list[tuple[str, Age]] = []

        def live(age: Age, asked: list[tuple[str, Age]] = asked) -> LiveBounds:
            asked.append(("live", age))
            return bounds

        def store(age: Age, asked: list[tuple[str, Age]] = asked) -> OffsetRange:
            asked.append(("archive", age))
            return archived

        find(Offset(offset), live, store, lambda: Offset(0), refused=refused)
        assert asked == expected


def test_what_the_leader_refuses_or_has_lost_decides_between_two_sides() -> None:
    archived = OffsetRange(Offset(5), Offset(30))
    bounds = LiveBounds(Offset(10), Offset(20), Offset(20))
    for offset, below, refused, side in (
        (4, 0, False, Side.NEITHER),  # below both
        (12, 0, False, Side.LIVE),
        (12, 13, False, Side.ARCHIVE),
        (12, 12, False, Side.LIVE),
        (12, 0, True, Side.ARCHIVE),
        (25, 99, True, Side.LIVE),  # of a former leader: not part of the log any more
    ):
        prefers = partial(Offset, below)
        chosen = choose(Offset(offset), bounds, archived, prefers, refused=refused)
        assert chosen is side, offset
