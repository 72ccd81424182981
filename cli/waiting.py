"""A sidecar that starts before its broker waits for the log dirs, and says that it lives."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.cli.wiring import http_server
from sidetier.config.log_dir_patterns import missing_log_dirs
from sidetier.config.startup import LocalMachine
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.telemetry.status import Condition, StatusSnapshot
from sidetier.uploader.running.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from sidetier.cli.invocation import Invocation
    from sidetier.config.loading import LoadedConfig
    from sidetier.config.model import Config

_LOOK_SECONDS: Final = 1.0
_OTHERS_SECONDS: Final = 5.0
"""How long to wait for the other log dirs once one is there: a broker makes all of them at its
start, and goes on without one whose disk has failed."""


class _Waiting:
    """The status of a sidecar that waits: alive, and not ready."""

    def __init__(self, cluster: str, missing: tuple[Path, ...]) -> None:
        reason = f"waiting for the broker to make {', '.join(map(str, missing))}"
        self._snapshot = StatusSnapshot(
            cluster, conditions=(Condition("bootstrapped", holds=False, reason=reason),)
        )

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        """See `StatusSource.snapshot`."""
        return self._snapshot


def wait_for_log_dirs(call: "Invocation", loaded: "LoadedConfig") -> "LoadedConfig":
    """Returns the configuration, read again, once a broker has made every log dir, or has made one
    and not the others for 5 s.

    SIGTERM ends the wait by SystemExit, as it ends everything before the daemon has started.

    Raises:
        ConfigurationError: it was changed meanwhile, and is wrong now; or its port is taken.
    """
    missing = missing_log_dirs(loaded.config, LocalMachine())
    if not missing:
        return loaded
    pause = threading.Event()
    give_up = math.inf
    with _pages(loaded.config, missing):
        structlog.get_logger().info("daemon.waiting", log_dirs=[str(path) for path in missing])
        while missing and SYSTEM_CLOCK.monotonic() < give_up:
            pause.wait(_LOOK_SECONDS)
            loaded = call.load()
            missing = missing_log_dirs(loaded.config, LocalMachine())
            if len(missing) < len(loaded.config.log_dirs):
                give_up = min(give_up, SYSTEM_CLOCK.monotonic() + _OTHERS_SECONDS)
    return loaded


@contextmanager
def _pages(config: "Config", missing: tuple[Path, ...]) -> Iterator[None]:
    """`/healthz` says 200 meanwhile, so that nobody starts the sidecar again."""
    registry, status = create_registry(), _Waiting(config.cluster.name, missing)
    Metrics(registry).observe_status(status)
    server = http_server(config.http, registry, status)
    server.start()
    try:
        yield
    finally:
        server.stop()
