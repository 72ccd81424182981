"""The bounds of what is held open: the process's files, the disk's free bytes."""

import resource
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from sidetier.config.uploader import PinsConfig
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.pinning.pins import PINNED_KINDS, HeldPin
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import TrackedSegment
from sidetier.uploader.watching.disk import device_of, free_bytes

log: Final = structlog.get_logger()

_OTHER_FILES: Final = 512
"""Descriptors left for connections, logs and the like."""


def enforce_bounds(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
    pins: PinTable,
    config: PinsConfig,
    log_dirs: Iterable[str],
    partitions: Iterable[Partition],
    clock: Clock,
    metrics: Metrics,
    device: Callable[[str], int | None] = device_of,
) -> None:
    """Let pins go until what they hold fits: the broker never runs full because of them. What is
    let go and not stored shows as a gap, if the broker has deleted it.
    """

    def failed(partition: Partition, tracked: TrackedSegment, error: OSError) -> None:
        """The disk of a pin does not answer: its segment is tried again, as long as it exists."""
        metrics.error(type(error).__name__)
        tracked.pin_failed(error, clock.monotonic())
        log.warning(
            "pin.failed",
            topic=partition.topic_partition.topic,
            partition=partition.topic_partition.partition,
            base_offset=tracked.segment.base_offset,
            error=str(error),
        )

    short = shortages(log_dirs, config, device)
    for released in pins.enforce(partitions, config.max_deleted_bytes, short, failed, device):
        _tell(released)


def _tell(released: HeldPin) -> None:
    log.error(
        "pin.released",
        topic=released.topic_partition.topic,
        partition=released.topic_partition.partition,
        base_offset=released.base_offset,
        bytes=released.size,
    )


def shortages(
    log_dirs: Iterable[str], config: PinsConfig, device: Callable[[str], int | None] = device_of
) -> dict[int, int]:
    """How many bytes each device of a log dir has less than its floor; only devices that are short.

    Log dirs on one file system share its free bytes. A log dir that is offline is left out: there
    is nothing to free.
    """
    found: dict[int, int] = {}
    for log_dir in log_dirs:
        where = device(log_dir)
        if where is None:
            continue
        try:
            free, total = free_bytes(log_dir)
        except OSError:
            continue
        found[where] = max(0, config.min_free_disk.of(total) - free)
    return {where: missing for where, missing in found.items() if missing}


def allowed_files(wanted: int) -> int:
    """Raise the soft limit of open files as far as is needed and allowed; what pins may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if resource.RLIM_INFINITY != soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - _OTHER_FILES)
    if allowed < wanted:
        log.warning("pins.limited", wanted_files=wanted, allowed_files=allowed, ulimit=soft)
    return max(len(PINNED_KINDS), allowed)
