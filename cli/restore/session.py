"""Calls of `sidetier restore` and its subcommand, from the configuration to the result.

Needs the packages of the extra `mirror`.
"""

import threading
from collections.abc import Mapping
from contextlib import ExitStack

from sidetier.cli.mirror.options import (
    ClusterOptions,
    RestoreOptions,
    TranslateRestoredOptions,
    require_bootstrap,
)
from sidetier.cli.mirror.running import (
    CountsLine,
    copy_request,
    end_line,
    registry_for,
    served,
    spark_engine,
)
from sidetier.cli.mirror.view import TranslateResult
from sidetier.cli.output import say
from sidetier.cli.progress import Update, records_shown
from sidetier.cli.restore.view import PlanResult, RestoreResult
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config
from sidetier.config.times import time_text
from sidetier.config.types import PropertyValue, References, SecretRef, resolved
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.restore.run import RestoreRequest, open_restore
from sidetier.mirror.restore.translation import (
    TranslateRestoredRequest,
    translate_restored_group,
)


def restore(config: Config, options: RestoreOptions) -> PlanResult | RestoreResult:
    """Restore the selected partitions.

    Raises:
        ConfigurationError: A setting or a target topic does not fit; nothing was restored.
        SidetierError: The archive or the target cannot be read or written.
    """
    copy = options.copy
    request = RestoreRequest(
        name=options.name,
        copy=copy_request(copy),
        partitions=options.partitions,
        begin=options.begin,
        end=options.end,
        from_quarantine=options.from_quarantine,
        from_retired=options.from_retired,
        abort_open=options.open_transactions == "abort",
        accept_cleanup=options.accept_cleanup,
        verify=options.verify,
        with_tail=options.with_tail,
    )
    stop = threading.Event()
    spark = spark_engine(options.engine, stop)
    registry = registry_for(copy.served_port)
    with (
        ExitStack() as stack,
        open_restore(
            config,
            request,
            target_references(config, options.target, options.bootstrap),
            stop=stop,
            spark=spark,
            registry=registry,
            on_note=say,
        ) as opened,
    ):
        plan = opened.plan()
        if copy.dry_run:
            return PlanResult(plan)
        bars: list[Update] = []

        def compared(done: int, total: int) -> None:
            if not bars:
                end_line()
                bars.append(stack.enter_context(records_shown(total, wanted=True)))
            bars[0](done, done)

        with handled_signals(stop.set), served(registry, copy.served_port):
            report = opened.run(plan, on_counts=CountsLine().show, on_compared=compared)
    return RestoreResult(report)


def target_references(config: Config, target: ClusterOptions, bootstrap: str | None) -> References:
    """Return the client properties of `--target`, or else of the configuration.

    Raises:
        ConfigurationError: The address of the target is missing.
    """
    properties: dict[str, PropertyValue | SecretRef] = {**target.references("target")}
    if not properties:
        properties = config.broker.client_references()
    if bootstrap is not None:
        properties["bootstrap.servers"] = bootstrap
    return require_bootstrap(properties, "target")


def target_properties(
    config: Config, target: ClusterOptions, bootstrap: str | None
) -> Mapping[str, str]:
    """Return the same properties with secrets resolved.

    Raises:
        ConfigurationError: The address of the target is missing, or a secret cannot be read.
    """
    return as_texts(resolved(target_references(config, target, bootstrap)))


def translate(config: Config, options: TranslateRestoredOptions) -> TranslateResult:
    """Set a group on the target to its position in the archived cluster.

    Raises:
        ConfigurationError: No snapshot has the group, or the restore does not exist.
        SidetierError: The store or the target cannot be read, or the target refuses the offsets.
    """
    request = TranslateRestoredRequest(options.group, options.name, options.dry_run)
    target = target_properties(config, options.target, options.bootstrap)

    def show(taken_ms: int) -> None:
        say(f"offsets of group {request.group} as of {time_text(taken_ms)}")

    with open_archive(config) as archive:
        groups = translate_restored_group(archive, request, target, show)
    return TranslateResult(groups, request.dry_run)
