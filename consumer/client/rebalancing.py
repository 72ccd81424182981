"""Rebalances of the group: the application's callbacks, and what is done where it does nothing."""

from collections.abc import Callable

from confluent_kafka import TopicPartition

Callback = Callable[..., None]


class Rebalancing:
    """Stands between librdkafka's callbacks and the application's.

    As in confluent-kafka, an application may answer in its callback with `assign`,
    `incremental_assign` and their counterparts; where it does not, or fails, this does.

    Args:
        consumer: what the application's callbacks are given.
        assign: what to do with new partitions.
        revoke: what to do with partitions that are taken away.
        callbacks: the application's on_assign, on_revoke and on_lost.
    """

    def __init__(
        self,
        consumer: object,
        assign: Callable[[list[TopicPartition]], None],
        revoke: Callable[[list[TopicPartition]], None],
        callbacks: tuple[Callback | None, Callback | None, Callback | None],
    ) -> None:
        self._consumer = consumer
        self._assign, self._revoke = assign, revoke
        self._on_assign, self._on_revoke, self._on_lost = callbacks
        self._answered = False

    def answered(self) -> None:
        """The assignment was changed by the application."""
        self._answered = True

    def on_assign(self, _: object, partitions: list[TopicPartition]) -> None:
        """Partitions come."""
        self._ask(self._on_assign, self._assign, partitions)

    def on_revoke(self, _: object, partitions: list[TopicPartition]) -> None:
        """Partitions go."""
        self._ask(self._on_revoke, self._revoke, partitions)

    def on_lost(self, _: object, partitions: list[TopicPartition]) -> None:
        """Partitions are gone already; what would be committed is refused."""
        self._ask(self._on_lost or self._on_revoke, self._revoke, partitions)

    def _ask(
        self,
        callback: Callback | None,
        otherwise: Callable[[list[TopicPartition]], None],
        partitions: list[TopicPartition],
    ) -> None:
        self._answered = False
        try:
            if callback is not None:
                callback(self._consumer, partitions)
        finally:
            if not self._answered:
                otherwise(partitions)
