"""What the daemon tells of itself as a whole: its numbers, and whether it is ready."""

from sidetier.telemetry.status import Condition
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.hung_requests import HungRequests
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.partition import Partition
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.status_board import Totals, pinned_ranges
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.log_dirs import LogDirs


def totals_of(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
    uploads: UploadQueue,
    pins: PinTable,
    leads: LedPartitions,
    errors: UnexpectedErrors,
    followed_pinned: int,
    log_dirs: LogDirs,
    hung: HungRequests,
) -> Totals:
    """Over all partitions, so not to be asked for at every step; `followed_pinned` are the segments
    that are held open for partitions of others.
    """
    pinned = pins.totals
    return Totals(
        queued=uploads.length,
        queued_bytes=uploads.bytes,
        uploading=uploads.busy,
        pinned_files=pinned.files,
        pinned_bytes=pinned.bytes,
        deleted_bytes=pinned.deleted_bytes,
        followed=leads.followed_count,
        followed_pinned=followed_pinned,
        pins=tuple(pinned_ranges(filter(_tells_of_pins, leads.with_parked()))),
        held_errors=errors.held(),
        log_dir_problems=log_dirs.problems,
        hung_requests=hung.count,
    )


def _tells_of_pins(partition: Partition) -> bool:
    """A follower's pins on what is no nearer deletion than the leader's copy tell nothing."""
    return not partition.follows or partition.at_risk > 0


def readiness(
    leads: LedPartitions, health: StoresHealth, hung_request: str | None = None
) -> tuple[Condition, ...]:
    """Bootstrapped, leadership known, stores reachable; what does not hold says why.

    One partition that is halted or held makes nobody unready: it shows in its own state. A request
    that hangs does, whatever other requests come to: `hung_request` says which one.
    """
    unread = sum(1 for partition in leads if partition.is_unread())
    return (
        _condition("leadership known", None if leads.known else "no source of leadership answers"),
        _condition("bootstrapped", f"{unread} watermarks are still to be read" if unread else None),
        _condition("store reachable", hung_request or health.reason),
    )


def _condition(name: str, problem: str | None) -> Condition:
    return Condition(name, problem is None, problem or "")
