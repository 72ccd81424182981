"""The end of the wanted records of a partition."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidetier.archive.objects.segment import Version
from sidetier.segments.offsets import Offset


@dataclass(frozen=True, slots=True)
class Bound:
    """Records from `until` on are not wanted.

    Attributes:
        until: End of the wanted offsets, exclusive.
        ends: Byte positions where the wanted part of segments ends, if known.
    """

    until: Offset
    ends: Mapping[Version, int] = field(default_factory=dict)
