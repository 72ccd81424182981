"""The application's callbacks. Their exceptions are raised after Kafka's client has returned.

Measured with confluent-kafka 2.16: if a callback raises inside `consume`, the client drops the
messages that it was about to return, and a later `close` never returns.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

_GUARDED: Final = ("error_cb", "on_commit", "stats_cb", "throttle_cb")
"""Without `oauth_cb`, whose exception is its answer to librdkafka."""


class Callbacks:
    """Keeps exceptions of callbacks. Used by one thread at a time, the polling one."""

    def __init__(self) -> None:
        self._raised: list[Exception] = []

    def guarded(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration for Kafka's client, with callbacks that never raise."""
        own = {name: config[name] for name in _GUARDED if callable(config.get(name))}
        return {**config, **{name: self.guard(callback) for name, callback in own.items()}}

    def guard(self, callback: Callable[..., object]) -> Callable[..., None]:
        """Wrap a callback so that its exception is kept for `check`."""

        def call(*arguments: object) -> None:
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 -- raised by `check`
                self._raised.append(error)

        return call

    def check(self) -> None:
        """Raise the first exception since the last check, and drop the others."""
        if self._raised:
            first = self._raised[0]
            self._raised.clear()
            raise first
