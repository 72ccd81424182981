"""`sidetier restore`: copy an archive into topics of a running cluster, exactly once."""

from typing import TYPE_CHECKING

from sidetier.cli import kernel
from sidetier.cli.extras import needs_extra, quiet_config
from sidetier.cli.mirror.options import LIBRARIES, RestoreOptions, TranslateRestoredOptions

if TYPE_CHECKING:
    from sidetier.cli.mirror.view import TranslateResult
    from sidetier.cli.restore.view import PlanResult, RestoreResult


@kernel.group("restore")
def command(options: RestoreOptions) -> "PlanResult | RestoreResult":
    """Copy archived topics into topics of a running cluster, each record exactly once.

    Reads only the archive, and with --with-tail also tail packs. It keeps keys, values, headers,
    timestamps and partitions; `sidetier restore translate-offsets` translates offsets. `sidetier
    hydrate` keeps offsets as well, but needs an empty cluster. After an interruption, run the same
    command again: it continues.

    WHERE is an offset (1234), a number of records before the end (-100), a time
    (2026-11-21, 2026-11-21T08:00:00Z; UTC without a zone; or @1700000000000, ms since 1970),
    beginning or end.
    A time means the first record of that time or a later one.

    \b
    Example:
      sidetier restore --topic orders --bootstrap-server b:9092 --config lost-cluster.yaml
      sidetier restore --partition orders-3 --from 2026-11-21T08:00:00Z --rename 'orders=found'

    Exit codes: 0 restored, and equal to the archive; 1 a failure; 2 a setting or a target topic
    does not fit, and nothing was restored; 3 restored, but with gaps, without records of an open
    transaction, or not equal to the archive; 130 stopped.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = quiet_config(options.call)
    with needs_extra("sidetier restore", LIBRARIES, "consumer,mirror"):
        from sidetier.cli.restore.session import restore  # noqa: PLC0415 -- `--help` must not load Kafka's client
    return restore(config, options)


@kernel.command(
    "translate-offsets",
    parent=command,
    short_help="Set a consumer group to its archived position.",
)
def translate_offsets(options: TranslateRestoredOptions) -> "TranslateResult":
    """Set a consumer group on the target to its position in the archived cluster.

    The position comes from the newest cluster snapshot that has offsets of the group for a restored
    topic. The group must have no members on the target. If the group had read more than was
    restored, it is set to the end of the restored records.

    \b
    Example:
      sidetier restore translate-offsets --group billing --bootstrap-server b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting is wrong, or no snapshot has the group; 3 done, but
    the group had read more than was restored.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = quiet_config(options.call)
    with needs_extra("sidetier restore", LIBRARIES, "consumer,mirror"):
        from sidetier.cli.restore.session import translate  # noqa: PLC0415 -- as above
    return translate(config, options)
