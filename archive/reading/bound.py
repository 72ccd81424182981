"""Where what is wanted of a partition ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidetier.archive.objects.segment import Version
from sidetier.segments.offsets import Offset


@dataclass(frozen=True, slots=True)
class Bound:
    """Records from `until` on are not wanted; `ends` has the byte behind which segments are not, as
    far as that is known.
    """

    until: Offset
    ends: Mapping[Version, int] = field(default_factory=dict)
