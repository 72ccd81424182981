"""Calls of `sidetier mirror` and its subcommands, from the options to the exit code.

Needs the packages of the extra `mirror`.
"""

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from sidetier.cli import exits
from sidetier.cli.invocation import Invocation
from sidetier.cli.mirror.options import client_properties, client_references, request_of
from sidetier.cli.mirror.running import CountsLine, end_line, served_registry, spark_engine
from sidetier.cli.mirror.view import CopyResult, PlanResult, TranslateResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive
from sidetier.mirror.copy.source import OnGap
from sidetier.mirror.mirroring import Delivery, MirrorRequest, open_mirror
from sidetier.mirror.offsets.translation import TranslateRequest, translate_groups
from sidetier.mirror.topics.planning import CopySettings
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.logs import configure_logs


def mirror(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Copy the topics that the options select; return the exit code.

    Raises:
        ConfigurationError: A setting or a topic does not fit; nothing was copied.
        SidetierError: A cluster or the archive cannot be read or written.
    """
    if given["name"] is None:
        raise ConfigurationError("--name is missing: the mirror's progress is kept under it")
    request = request_of(
        MirrorRequest,
        given,
        on_gap=OnGap(given["on_gap"]),
        delivery=Delivery(given["delivery"]),
        copy_settings=CopySettings(given["copy_settings"]),
    )
    _ = request.rules  # refused before the configuration is read
    config = None
    configure_logs("console" if sys.stderr.isatty() else "json")
    if call.is_configured():
        loaded = call.load(needs_log_dirs=False)
        configure_logs(loaded.config.log.format, loaded.config.log.level)
        config = loaded.config
    stop = threading.Event()
    spark = spark_engine(given, stop)
    with open_mirror(
        request,
        client_references("source", given, config),
        client_references("target", given),
        config=None if given["no_archive"] else config,
        stop=stop,
        spark=spark,
        registry=served_registry(None if given["dry_run"] else given["metrics_port"]),
    ) as opened:
        if given["dry_run"]:
            plan = PlanResult(opened.plan())
            emit(plan, output)
            return plan.exit_code
        with handled_signals(stop.set):
            report = opened.run(CountsLine().show)
        end_line()
    result = CopyResult(report)
    emit(result, output)
    is_left = report.counts.lag_records or report.groups_problem is not None
    if spark is not None and stop.is_set() and is_left:
        return exits.INTERRUPTED
    return result.exit_code


def translate(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Set groups on the target to their positions on the source; return the exit code.

    Raises:
        ConfigurationError: A setting does not fit, or nothing was mirrored under this name.
        SidetierError: A cluster or the archive cannot be read, or the target refuses the offsets.
    """
    request = request_of(TranslateRequest, given)
    target = client_properties("target", given)
    config = call.load(needs_log_dirs=False).config if call.is_configured() else None
    source = None if given["from_snapshot"] else client_properties("source", given, config)
    with ExitStack() as stack:
        archive = None if config is None else stack.enter_context(open_archive(config))
        groups = translate_groups(request, source, target, archive)
    result = TranslateResult(groups, given["dry_run"])
    emit(result, output)
    return result.exit_code
