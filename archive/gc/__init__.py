"""Garbage collection: what is past its retention on the store, orphans, and unfinished uploads."""

from sidetier.archive.gc.needs import Consumer, NextOffset, UnknownProgressError, group_consumer
from sidetier.archive.gc.run import (
    CONNECTIONS,
    CollectedPartition,
    GarbageCollector,
    GcRequest,
    OrphansReport,
    RetentionReport,
    UploadsReport,
)

__all__ = [
    "CONNECTIONS",
    "CollectedPartition",
    "Consumer",
    "GarbageCollector",
    "GcRequest",
    "NextOffset",
    "OrphansReport",
    "RetentionReport",
    "UnknownProgressError",
    "UploadsReport",
    "group_consumer",
]
