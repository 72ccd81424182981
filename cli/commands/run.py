"""`sidetier run`: run the sidecar."""

import contextlib
import gc
import math
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidetier import __version__
from sidetier.cli import exits, kernel
from sidetier.cli.invocation import Invocation
from sidetier.cli.lean_structlog import structlog
from sidetier.cli.options import CONFIGURATION, option, options
from sidetier.cli.signals import handled_signals
from sidetier.config.startup import LocalMachine, missing_log_dirs, missing_reason
from sidetier.telemetry.logs import configure_logs
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.telemetry.status import Condition, FixedStatus, StatusSnapshot
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.wiring import daemon, http_server

if TYPE_CHECKING:
    from sidetier.config.loading import LoadedConfig
    from sidetier.config.model import Config
    from sidetier.telemetry.http import HttpServer


_LOOK_SECONDS: Final = 1.0
_OTHERS_SECONDS: Final = 5.0
"""Time to wait for the other log dirs once one exists, in seconds. A broker creates all of them at
its start, but continues without one whose disk has failed.
"""


def wait_for_log_dirs(call: Invocation, loaded: "LoadedConfig") -> "LoadedConfig":
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
    reason = missing_reason(missing, LocalMachine())
    with _pages(loaded.config, reason):
        names = [str(path) for path in missing]
        structlog.get_logger().warning("daemon.waiting", log_dirs=names, reason=reason)
        while missing and SYSTEM_CLOCK.monotonic() < give_up:
            pause.wait(_LOOK_SECONDS)
            loaded = call.load()
            missing = missing_log_dirs(loaded.config, LocalMachine())
            if len(missing) < len(loaded.config.log_dirs):
                give_up = min(give_up, SYSTEM_CLOCK.monotonic() + _OTHERS_SECONDS)
    return loaded


def _pages(config: "Config", reason: str) -> "HttpServer":
    """Return a server of `/healthz` with 200, so that no liveness probe ends the sidecar."""
    registry = create_registry()
    waiting = Condition("bootstrapped", holds=False, reason=reason)
    status = FixedStatus(StatusSnapshot(config.cluster.name, conditions=(waiting,)))
    Metrics(registry).observe_status(status)
    return http_server(config.http, registry, status)


_AUTOGROUP: Final = Path("/proc/self/autogroup")


def stand_back(niceness: int) -> None:
    """Raise this process's niceness to at least `niceness`, as `nice` does.

    If the kernel schedules processes by session (autogroup), a process's niceness counts only
    within its session. The function then also sets the niceness of the session's autogroup. In a
    container, CPU shares decide about the rest.
    """
    if niceness == 0:
        return
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError):  # no autogroups, or no permission
        _AUTOGROUP.write_text(str(niceness))


@options
class RunOptions:
    """Options of `sidetier run`."""

    wait: bool = option("--wait", help="Wait until the broker has created its log dirs.")
    call: Invocation = CONFIGURATION


@kernel.command("run")
def command(options: RunOptions) -> int:
    """Archive the closed segments of this host's broker, until stopped.

    On SIGTERM the sidecar starts no new upload, gives running uploads uploader.shutdown_grace to
    finish, and exits with code 0.

    \b
    Example:
      sidetier run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 stopped by SIGTERM or SIGINT; 1 a thread died or a file cannot be read, and the
    message names it; 2 a setting is wrong, and nothing was changed.
    """  # noqa: D301 -- \b is click's marker and must be one character
    loaded = options.call.load()
    configure_logs(loaded.config.log.format, loaded.config.log.level)
    if options.wait:
        loaded = wait_for_log_dirs(options.call, loaded)
    config = loaded.config
    log = structlog.get_logger()
    for warning in loaded.warnings:
        log.warning("config.warning", message=warning)
    stand_back(config.uploader.niceness)
    registry = create_registry()
    metrics = Metrics(registry, config.http.max_partition_series)
    # Handle signals before the log event: a supervisor that reads `daemon.started` may send SIGTERM
    # at once.
    with (
        daemon(config, metrics, loaded.origins) as built,
        handled_signals(built.stop),
        http_server(config.http, registry, built.status) as server,
    ):
        log.info(
            "daemon.started",
            version=__version__,
            cluster=config.cluster.name,
            log_dirs=[str(path) for path in config.log_dirs],
            url=server.url,
        )
        gc.collect()
        gc.freeze()  # objects loaded so far stay for good: later collections skip them
        built.run()
    return exits.OK
