"""`sidetier mirror`: copy a cluster's topics into another cluster, each record exactly once."""

from typing import Any

import click

from sidetier.cli.arguments import checked_duration
from sidetier.cli.extras import from_extra
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.mirror.options import (
    LIBRARIES,
    copy_options,
    engine_options,
    source_options,
    target_options,
)
from sidetier.cli.output import OutputFormat, output_option


@click.group(name="mirror", invoke_without_command=True)
@click.option("--name", metavar="NAME", help="Name of the mirror; its progress is kept under it.")
@source_options
@target_options
@copy_options
@click.option(
    "--delivery",
    type=click.Choice(["exactly-once", "at-least-once"]),
    default="exactly-once",
    show_default=True,
    help="Records and progress in one transaction; or progress after the records, so that a "
    "failure copies some records twice.",
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(["beginning", "end"]),
    default="beginning",
    show_default=True,
    help="Where to start a partition that this mirror has never copied.",
)
@click.option(
    "--accept-target-records",
    is_flag=True,
    help="Copy also into topics that already have records, but no progress of this mirror.",
)
@click.option(
    "--on-new-partitions",
    type=click.Choice(["add", "refuse"]),
    default="add",
    show_default=True,
    help="Action when a source topic gets more partitions: add them to the copy, or stop copying "
    "the topic.",
)
@click.option(
    "--on-recreate",
    type=click.Choice(["stop", "restart"]),
    default="stop",
    show_default=True,
    help="Action when a source topic is deleted and created again: stop copying it and keep the "
    "copy, or delete the copy with all its records, and copy the new topic from its beginning.",
)
@click.option(
    "--copy-settings",
    type=click.Choice(["none", "once", "sync"]),
    default="once",
    show_default=True,
    help="Which copies get the configuration of their source topic: none; once, when the mirror "
    "creates the copy; or sync, all copies, updated whenever the source changes.",
)
@click.option(
    "--copy-acls",
    is_flag=True,
    help="Give the copies the ACLs of their source topics, without the permission to write.",
)
@click.option("--no-archive", is_flag=True, help="Read the brokers only, not the archive.")
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="Stop after the records that the source had committed at the start.",
)
@engine_options
@click.option(
    "--worker",
    metavar="NAME",
    default="0",
    show_default=True,
    help="Name of this process among the workers that share the partitions, such as the pod's "
    "name. A new process takes over from an earlier one of the same name.",
)
@click.option(
    "--session-timeout",
    metavar="DURATION",
    default="30s",
    show_default=True,
    callback=checked_duration,
    help="Time without a heartbeat after which other workers take over this worker's partitions.",
)
@click.option(
    "--transaction-timeout",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=checked_duration,
    help="Time after which the target aborts an open transaction of a dead worker.",
)
@click.option(
    "--translate-groups",
    "group_patterns",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for whole names of consumer groups; repeatable. The mirror sets these "
    "groups on the target to their positions on the source.  [default: none]",
)
@click.option(
    "--translate-interval",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=checked_duration,
    help="Interval at which the mirror sets these groups.",
)
@click.option(
    "--offset-map-runs",
    type=click.IntRange(256),
    default=1024,
    show_default=True,
    help="Maximum entries of each partition in the offset map. The newest half is exact; older "
    "entries are thinned out. Each transaction adds one entry.",
)
@output_option
@configuration_options
@click.pass_context
def command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click passes values of several types
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
    if context.invoked_subcommand is not None:
        return
    call = invocation(context)

    def run() -> int:
        from sidetier.cli.mirror.session import mirror  # noqa: PLC0415 -- `--help` must not load Kafka's client

        return mirror(call, given, output)

    context.exit(from_extra(run, "mirror", LIBRARIES, "mirror"))


@command.command(name="adopt", short_help="Continue the copy of another mirror.")
@click.option("--name", required=True, metavar="NAME", help="Name of the new mirror.")
@click.option(
    "--group",
    required=True,
    metavar="GROUP",
    help="Consumer group on the source whose offsets are the old mirror's progress.",
)
@click.option(
    "--committed",
    type=click.Choice(["next-offset", "last-record"]),
    default="next-offset",
    show_default=True,
    help="Which offset the old mirror commits: that of the next record, as consumers do, or that "
    "of the last copied record.",
)
@source_options
@target_options
@click.option(
    "--topic",
    "topics",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for whole names of source topics; repeatable.  [default: all topics "
    "of the group]",
)
@click.option(
    "--exclude",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for whole names of topics to leave out; repeatable.",
)
@click.option(
    "--rename",
    metavar="PATTERN=NAME",
    multiple=True,
    help="Name of the copies of topics that match, in the old and the new mirror; repeatable.  "
    "[default: the source's name]",
)
@click.option(
    "--accept-log-append-time",
    is_flag=True,
    help="Take over also topics whose brokers replace the timestamps "
    "(message.timestamp.type=LogAppendTime). Their records cannot be compared.",
)
@click.option(
    "--compare",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    metavar="OFFSETS",
    help="Last offsets of each target partition to compare with the source; 0 compares none.",
)
@click.option(
    "--search",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    metavar="OFFSETS",
    help="Source offsets to search after the committed one.",
)
@click.option("--dry-run", is_flag=True, help="Show the progress, and write none.")
@output_option
@configuration_options
@click.pass_context
def adopt_command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click's values
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
    call = invocation(context)

    def run() -> int:
        from sidetier.cli.mirror.adopt import adopt  # noqa: PLC0415 -- `--help` must not load Kafka's client

        return adopt(call, given, output)

    context.exit(from_extra(run, "mirror", LIBRARIES, "mirror"))


@command.command(
    name="translate-offsets", short_help="Set consumer groups to their source positions."
)
@click.option("--name", required=True, metavar="NAME", help="Name of the mirror.")
@click.option(
    "--group", "groups", metavar="GROUP", multiple=True, help="Consumer group; repeatable."
)
@click.option(
    "--groups",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for whole names of the source's consumer groups; repeatable.",
)
@source_options
@target_options
@click.option(
    "--from-snapshot",
    is_flag=True,
    help="Take the groups' offsets from the newest cluster snapshot in the archive: the source is "
    "lost.",
)
@click.option(
    "--allow-rewind",
    is_flag=True,
    help="Also set groups back that are further ahead on the target: they read records again.",
)
@click.option("--dry-run", is_flag=True, help="Show the offsets, and set none.")
@output_option
@configuration_options
@click.pass_context
def translate_command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click's values
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
    call = invocation(context)

    def run() -> int:
        from sidetier.cli.mirror.session import translate  # noqa: PLC0415 -- `--help` must not load Kafka's client

        return translate(call, given, output)

    context.exit(from_extra(run, "mirror", LIBRARIES, "mirror"))
