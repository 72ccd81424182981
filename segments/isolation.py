"""What a reader is shown of transactions."""

from enum import StrEnum


class IsolationLevel(StrEnum):
    """Kafka's `isolation.level`; the values are its own."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"
