"""Calls of `sidetier mirror` and its subcommands, from the options to the result.

Needs the packages of the extra `mirror`.
"""

import sys
import threading
from contextlib import ExitStack

from sidetier.cli.mirror.options import (
    MirrorOptions,
    TranslateOptions,
    client_properties,
    client_references,
)
from sidetier.cli.mirror.running import (
    CountsLine,
    copy_request,
    end_line,
    registry_for,
    served,
    spark_engine,
)
from sidetier.cli.mirror.view import CopyResult, PlanResult, TranslateResult
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive
from sidetier.mirror.mirroring import Delivery, MirrorRequest, open_mirror
from sidetier.mirror.offsets.translation import TranslateRequest, translate_groups
from sidetier.mirror.topics.planning import CopySettings
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.logs import configure_logs


def mirror(options: MirrorOptions) -> CopyResult | PlanResult:
    """Copy the topics that the options select.

    Raises:
        ConfigurationError: A setting or a topic does not fit; nothing was copied.
        SidetierError: A cluster or the archive cannot be read or written.
    """
    if options.name is None:
        raise ConfigurationError("--name is missing: the mirror's progress is kept under it")
    copy, call = options.copy, options.call
    request = MirrorRequest(
        name=options.name,
        copy=copy_request(copy),
        delivery=Delivery(options.delivery),
        begin=options.begin,
        accept_target_records=options.accept_target_records,
        on_new_partitions=options.on_new_partitions,
        on_recreate=options.on_recreate,
        copy_settings=CopySettings(options.copy_settings),
        copy_acls=options.copy_acls,
        until_caught_up=options.until_caught_up,
        worker=options.worker,
        session_timeout=options.session_timeout,
        transaction_timeout=options.transaction_timeout,
        group_patterns=options.group_patterns,
        translate_interval=options.translate_interval,
        offset_map_runs=options.offset_map_runs,
    )
    _ = request.copy.rules  # refused before the configuration is read
    config = None
    configure_logs("console" if sys.stderr.isatty() else "json")
    if call.is_configured():
        loaded = call.load(needs_log_dirs=False)
        configure_logs(loaded.config.log.format, loaded.config.log.level)
        config = loaded.config
    stop = threading.Event()
    spark = spark_engine(options.engine, stop)
    registry = registry_for(copy.served_port)
    with open_mirror(
        request,
        client_references("source", options.source, config),
        client_references("target", options.target),
        config=None if options.no_archive else config,
        stop=stop,
        spark=spark,
        registry=registry,
    ) as opened:
        if copy.dry_run:
            return PlanResult(opened.plan())
        with handled_signals(stop.set), served(registry, copy.served_port):
            report = opened.run(CountsLine().show)
        end_line()
    is_left = report.counts.lag_records or report.groups_problem is not None
    return CopyResult(report, bool(spark is not None and stop.is_set() and is_left))


def translate(options: TranslateOptions) -> TranslateResult:
    """Set groups on the target to their positions on the source.

    Raises:
        ConfigurationError: A setting does not fit, or nothing was mirrored under this name.
        SidetierError: A cluster or the archive cannot be read, or the target refuses the offsets.
    """
    request = TranslateRequest(
        options.name, options.groups, options.patterns, options.allow_rewind, options.dry_run
    )
    target = client_properties("target", options.target)
    call = options.call
    config = call.load(needs_log_dirs=False).config if call.is_configured() else None
    is_lost = options.from_snapshot
    source = None if is_lost else client_properties("source", options.source, config)
    with ExitStack() as stack:
        archive = None if config is None else stack.enter_context(open_archive(config))
        groups = translate_groups(request, source, target, archive)
    return TranslateResult(groups, options.dry_run)
