"""The bounds of what is held open: the process's files, the disk's free bytes."""

import resource
from collections.abc import Iterable
from typing import Final

import structlog

from sidetier.config.uploader import PinsConfig
from sidetier.uploader.partition import Partition
from sidetier.uploader.pinning.pins import PINNED_KINDS
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.watching.disk import free_bytes

log: Final = structlog.get_logger()

_OTHER_FILES: Final = 512
"""Descriptors left for connections, logs and the like."""


def enforce_bounds(
    pins: PinTable, config: PinsConfig, log_dirs: Iterable[str], partitions: Iterable[Partition]
) -> None:
    """Let pins go until what they hold fits: the broker never runs full because of them. What is
    let go and not stored shows as a gap, if the broker has deleted it.
    """
    short = {log_dir: bytes_short(log_dir, config) for log_dir in log_dirs}
    for let_go in pins.enforce(partitions, config.max_deleted_bytes, short):
        log.error(
            "pin.released",
            topic=let_go.topic_partition.topic,
            partition=let_go.topic_partition.partition,
            base_offset=let_go.base_offset,
            bytes=let_go.size,
        )


def bytes_short(log_dir: str, config: PinsConfig) -> int:
    """How far the disk is below its floor; 0 for one that is offline: nothing to free there."""
    try:
        free, total = free_bytes(log_dir)
    except OSError:
        return 0
    return max(0, config.min_free_disk.of(total) - free)


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
