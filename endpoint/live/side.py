"""Which side answers a Fetch: the archive, or the partition's leader. Pure.

The broker deletes records that are archived, and never others (`sidetier trim`, or its retention
after the upload). So the live log start may only have passed an offset after `offset.wm` has. Both
are known from the past, each from another moment, and the order of the two reads decides whether an
offset can seem to be on neither side: **the live log start first, then `offset.wm`**. The other way
round, records that were archived and deleted in between are on neither side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from sidetier.segments.offsets import Offset, OffsetRange


@dataclass(frozen=True, slots=True)
class LiveBounds:
    """Offsets of a live partition, as its leader has reported them.

    Attributes:
        start: The log start offset. It only rises, unless the topic is created again.
        high_watermark: The high watermark.
        last_stable_offset: The last stable offset.
    """

    start: Offset
    high_watermark: Offset
    last_stable_offset: Offset


class Age(Enum):
    """How old an answer may be."""

    KNOWN = "known"
    """Any age: no request is made."""
    RECENT = "recent"
    """Some seconds."""
    NOW = "now"


class Side(Enum):
    """What has an offset."""

    ARCHIVE = "archive"
    LIVE = "broker"
    NEITHER = "neither"
    """The offset is below the live log start, and not archived."""
    UNKNOWN = "unknown"
    """The leader cannot be asked, and the offset is not archived."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The side that has an offset, and what was known when it was chosen.

    Attributes:
        side: The side.
        live: The live partition; None if its leader cannot be asked.
        archived: The archived offsets; None if nothing is archived.
    """

    side: Side
    live: LiveBounds | None
    archived: OffsetRange | None


def choose(
    offset: Offset,
    live: LiveBounds | None,
    archived: OffsetRange | None,
    store_below: Callable[[], Offset],
    *,
    refused: bool = False,
) -> Side:
    """Return the side that has an offset, by what is known of both.

    Args:
        offset: The offset.
        live: The live partition; None if its leader cannot be asked.
        archived: The archived offsets; None if nothing is archived.
        store_below: Returns the offset below which the archive is preferred, if both sides have an
            offset. Called only then: it may ask the leader.
        refused: The leader does not have the offset, whatever its bounds are.
    """
    is_archived = archived is not None and archived.start <= offset < archived.end
    if live is None:
        return Side.ARCHIVE if is_archived else Side.UNKNOWN
    if offset < live.start:
        return Side.ARCHIVE if is_archived else Side.NEITHER
    # Archived records above the high watermark were lost by an unclean election: they are not part
    # of the leader's log.
    if is_archived and offset < live.high_watermark and (refused or offset < store_below()):
        return Side.ARCHIVE
    return Side.LIVE


def find(
    offset: Offset,
    live: Callable[[Age], LiveBounds | None],
    archived: Callable[[Age], OffsetRange | None],
    store_below: Callable[[], Offset],
    *,
    refused: bool = False,
) -> Sides:
    """Return the side that has an offset.

    NEITHER is final: the archive was read after it was known that the live log start has passed the
    offset. The leader's records do not wait for the store: where its log has the offset, what is
    known of the archive will do.

    Args:
        offset: The offset.
        live: Returns the live partition; never asked for KNOWN.
        archived: Returns the archived offsets.
        store_below: As for `choose`; called after `archived`.
        refused: The leader has answered OFFSET_OUT_OF_RANGE for this offset, so what is known of
            its log start is too old.
    """
    if refused:
        known = live(Age.NOW)
    else:
        known = live(Age.RECENT)
        is_live = known is not None and known.start <= offset
        known_archived = archived(Age.KNOWN if is_live else Age.RECENT)
        side = choose(offset, known, known_archived, store_below)
        if side is not Side.NEITHER:
            return Sides(side, known, known_archived)
        # What is known may be that of a topic that was deleted meanwhile.
        known = live(Age.NOW)
    # The live log start has passed the offset by now, so that `offset.wm` has, too.
    now_archived = archived(Age.NOW)
    side = choose(offset, known, now_archived, store_below, refused=refused)
    return Sides(side, known, now_archived)
