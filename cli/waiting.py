"""Wait of a sidecar that starts before its broker, until the broker has created its log dirs."""

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
"""Time to wait for the other log dirs once one exists, in seconds. A broker creates all of them at
its start, but continues without one whose disk has failed.
"""


class _Waiting:
    """Status of a sidecar that waits: alive, but not ready."""

    def __init__(self, cluster: str, missing: tuple[Path, ...]) -> None:
        reason = f"waiting for the broker to make {', '.join(map(str, missing))}"
        self._snapshot = StatusSnapshot(
            cluster, conditions=(Condition("bootstrapped", holds=False, reason=reason),)
        )

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- signature of the port
        """See `StatusSource.snapshot`."""
        return self._snapshot


def wait_for_log_dirs(call: "Invocation", loaded: "LoadedConfig") -> "LoadedConfig":
    """Wait until the broker has created its log dirs, and return the configuration, loaded again.

    The wait ends when every log dir exists, or when some exist and the others have been missing for
    another 5 s. SIGTERM ends it by SystemExit, as it ends everything before the daemon has started.

    Raises:
        ConfigurationError: The configuration was changed meanwhile and is wrong now, or the HTTP
            port is taken.
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
    """Serve `/healthz` with 200 during the wait, so that no liveness probe ends the sidecar."""
    registry, status = create_registry(), _Waiting(config.cluster.name, missing)
    Metrics(registry).observe_status(status)
    server = http_server(config.http, registry, status)
    server.start()
    try:
        yield
    finally:
        server.stop()
