"""Acknowledgements: an operator accepts a gap, with a reason.

The acknowledgement of the gap record `_sidetier/<cluster>/gaps/<partition>/<start>-<end>.json` is
`_sidetier/<cluster>/acknowledged/gaps/<partition>/<start>-<end>.json`. The gap record stays as it
is, because readers need it. Earlier versions of the sidecar only look whether the key exists, so
an empty object, as an earlier runbook recommended, counts as well.

An acknowledgement covers every gap in its range. It may be older than the gap record: an operator
accepts in advance that records of an old message format are lost (`accept_loss`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.archive.objects.gaps import listed_gaps, recorded_gaps
from sidetier.archive.objects.watermark import read_watermark
from sidetier.segments.errors import (
    ConfigurationError,
    MalformedObjectError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Who has accepted a gap, when and why. All fields are None in an empty object.

    Attributes:
        reason: The operator's words.
        user: Name of the operator's account.
        time_ms: When, in ms since 1970.
    """

    reason: str | None = None
    user: str | None = None
    time_ms: int | None = None


_CODEC: Final = JsonCodec(Acknowledgement, "an acknowledgement")


def acknowledged_gaps(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> Mapping[OffsetRange, str]:
    """Return the acknowledged gaps of a partition with the keys of their acknowledgements.

    One listing.
    """
    prefix = layout.acknowledgement_key(layout.gap_prefix(tp))
    return {gap: row.key for folder, row, gap in listed_gaps(store, prefix) if folder == prefix}


def covering(gap: OffsetRange, acknowledged: Iterable[OffsetRange]) -> OffsetRange | None:
    """Return the smallest acknowledged range that contains a gap; None if there is none."""
    around = (r for r in acknowledged if r.start <= gap.start and gap.end <= r.end)
    return min(around, key=lambda r: r.size, default=None)


def read_acknowledgement(store: RemoteStorage, key: str) -> Acknowledgement:
    """Read an acknowledgement; its fields are None where the object has none.

    They are also None in an object that does not parse or is of an unknown version: the gap is
    acknowledged by the key alone, and a refusal would hide all other gaps of a report.
    """
    try:
        stored = _CODEC.read(store, key)
    except MalformedObjectError:
        stored = None
    return Acknowledgement() if stored is None else stored.value


def acknowledge_gap(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    gap: OffsetRange,
    acknowledgement: Acknowledgement,
) -> bool:
    """Acknowledge a recorded gap, by one conditional put.

    Returns:
        False if the gap had been acknowledged before: the earlier reason stays.

    Raises:
        ConfigurationError: No gap of exactly these offsets is recorded; the message names the
            recorded ones.
    """
    recorded = sorted(recorded_gaps(store, layout, [tp])[tp])
    if gap not in recorded:
        known = ", ".join(map(str, recorded)) or "none"
        raise ConfigurationError(
            f"{tp} has no recorded gap {gap}; its recorded gaps, START and END: {known}"
        )
    return _acknowledge(store, layout, tp, gap, acknowledgement)


def accept_loss(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    lost: OffsetRange,
    acknowledgement: Acknowledgement,
) -> bool:
    """Accept in advance that offsets above the archive end are lost, by one conditional put.

    It moves nothing and hides nothing. The leader's sidecar records a gap, and only for segments
    whose format it cannot archive. A kill right after the put leaves the acknowledgement.

    Returns:
        False if the same offsets had been accepted before: the earlier reason stays.

    Raises:
        ConfigurationError: The range is empty, or begins below the archive end offset.
    """
    if not lost.size > 0:
        raise ConfigurationError(f"END {lost.end} is not above START {lost.start}")
    mark = read_watermark(store, layout.watermark_key(tp))
    end = None if mark is None else mark.watermark.next_offset
    if end is not None and lost.start < end:
        raise ConfigurationError(
            f"{tp} is archived up to {end}: START must be {end} or higher, as `sidetier status` "
            "shows it"
        )
    return _acknowledge(store, layout, tp, lost, acknowledgement)


def _acknowledge(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    gap: OffsetRange,
    acknowledgement: Acknowledgement,
) -> bool:
    fields = {
        "topic": tp.topic,
        "partition": tp.partition,
        "start_offset": gap.start,
        "end_offset": gap.end,
        **asdict(acknowledgement),
    }
    body = BytesBody(_CODEC.encode(fields, ensure_ascii=False))
    key = layout.acknowledgement_key(layout.gap_key(tp, gap.start, gap.end))
    try:
        store.put_object(key, body, PutOptions(condition=IfAbsent()))
    except PreconditionFailedError as error:
        # An earlier attempt of this call may have stored it, and its answer was lost.
        return error.ambiguous and read_acknowledgement(store, key) == acknowledgement
    return True
