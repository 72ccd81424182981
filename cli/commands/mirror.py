"""`sidetier mirror`: copy a cluster's topics into another cluster, each record exactly once."""

from typing import TYPE_CHECKING

from sidetier.cli import kernel
from sidetier.cli.extras import needs_extra
from sidetier.cli.mirror.options import LIBRARIES, AdoptOptions, MirrorOptions, TranslateOptions

if TYPE_CHECKING:
    from sidetier.cli.mirror.adopt import AdoptResult
    from sidetier.cli.mirror.view import CopyResult, PlanResult, TranslateResult


@kernel.group("mirror")
def command(options: MirrorOptions) -> "CopyResult | PlanResult":
    """Copy topics into another cluster, each record exactly once.

    The mirror reads the source's brokers, and the archive (if one is configured) for records that
    the brokers have deleted before they were copied. It keeps keys, values, headers, timestamps and
    partitions; `sidetier mirror translate-offsets` translates offsets.

    \b
    Example:
      sidetier mirror --name dr --topic 'orders.*' \\
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting or a topic is wrong, and nothing was copied; 3
    done, but there are gaps, topics that could not be copied to the end, or consumer groups that
    could not be set; 130 stopped, with --engine spark.
    """  # noqa: D301 -- \b is click's marker and must be one character
    with needs_extra("mirror", LIBRARIES, "mirror"):
        from sidetier.cli.mirror.session import mirror  # noqa: PLC0415 -- `--help` must not load Kafka's client

        return mirror(options)


@kernel.command("adopt", parent=command, short_help="Continue the copy of another mirror.")
def adopt_command(options: AdoptOptions) -> "AdoptResult":
    """Take over from a mirror that commits its progress on the source.

    For MirrorMaker 1, or a program that consumes and produces. Stop it first. The command searches
    the source for the last records of each target partition, by timestamp, key and value, and sets
    the new mirror's progress after the last one that was copied: nothing is lost or copied twice,
    even if the committed offset does not match the copied records. If it does not find them, it
    uses the committed offset, and the result shows how many records may be copied twice.

    The command writes the progress on the target in one transaction. It never changes progress that
    exists, so you can repeat it.

    \b
    Example:
      sidetier mirror adopt --name dr --group old-copier --committed last-record \\
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting is wrong, the old mirror runs, or other progress
    exists, and nothing was written; 3 done, but some records may be copied twice.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    with needs_extra("mirror", LIBRARIES, "mirror"):
        from sidetier.cli.mirror.adopt import adopt  # noqa: PLC0415 -- `--help` must not load Kafka's client

        return adopt(options)


@kernel.command(
    "translate-offsets",
    parent=command,
    short_help="Set consumer groups to their source positions.",
)
def translate_command(options: TranslateOptions) -> "TranslateResult":
    """Set consumer groups on the target to their positions on the source.

    A group that has members on the target is left alone. A group that is ahead of the mirror is set
    to the end of what was copied, and reads again what is copied later. If the target's topic with
    the offset map is lost, the command reads the map from the archive of the configuration.

    \b
    Example:
      sidetier mirror translate-offsets --name dr --group billing \\
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092
      sidetier mirror translate-offsets --name dr --groups '.*' --from-snapshot \\
        --config source.yaml --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting is wrong; 3 done, but some groups read records
    again, are further ahead on the target, or have members there.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    with needs_extra("mirror", LIBRARIES, "mirror"):
        from sidetier.cli.mirror.session import translate  # noqa: PLC0415 -- `--help` must not load Kafka's client

        return translate(options)
