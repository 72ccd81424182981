"""The application's callbacks: what they raise waits until Kafka's client has returned.

Measured with confluent-kafka 2.16: where a callback raises within `consume`, the messages that were
about to be returned are dropped, and a later `close` never returns.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

_GUARDED: Final = ("error_cb", "on_commit", "stats_cb", "throttle_cb")
"""Not `oauth_cb`: what it raises is the answer."""


class Callbacks:
    """Keeps what they raise; one thread at a time, that which polls."""

    def __init__(self) -> None:
        self._raised: list[Exception] = []

    def guarded(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration for Kafka's client, with callbacks that never raise."""
        own = {name: config[name] for name in _GUARDED if callable(config.get(name))}
        return {**config, **{name: self.guard(callback) for name, callback in own.items()}}

    def guard(self, callback: Callable[..., object]) -> Callable[..., None]:
        """The same, but what it raises is kept for `check`."""

        def call(*arguments: object) -> None:
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 -- raised by `check`
                self._raised.append(error)

        return call

    def check(self) -> None:
        """Raise the first thing that was raised since; the others are dropped."""
        if self._raised:
            first = self._raised[0]
            self._raised.clear()
            raise first
