"""Kafka's isolation levels."""

from enum import StrEnum


class IsolationLevel(StrEnum):
    """Kafka's `isolation.level`, with Kafka's values."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"
