"""`sidetier hydrate`: restore archived topics on an empty cluster, with the same offsets."""

from contextlib import AbstractContextManager

import click

from sidetier.cli import kernel
from sidetier.cli.extras import RECORD_PACKAGES, needs_extra, quiet_config
from sidetier.cli.hydrate.options import (
    FinishOptions,
    PlaceOptions,
    PlanOptions,
    PrepareOptions,
    ReplicateOptions,
    VerifyOptions,
)
from sidetier.cli.invocation import configuration_parameters


@click.group(name="hydrate", params=[*configuration_parameters()])
def command() -> None:
    """Restore archived topics on an empty cluster, with the same offsets.

    The archived segments are placed into the brokers' log dirs while the brokers are stopped.
    Offsets, timestamps, headers and transactions are then the same as before. Every step reads the
    same plan file and checks the step before it. After an interruption, repeat the step:

    \b
      sidetier hydrate plan plan.json      what is restored, and what is lost
      sidetier hydrate prepare plan.json   create the topics; the new cluster runs
      (stop the brokers cleanly, copy plan.json to each broker's host)
      sidetier hydrate place plan.json     on each host, beside the stopped broker
      (start the brokers)
      sidetier hydrate replicate plan.json abort open transactions, raise the replication factor
      sidetier hydrate verify plan.json    compare everything with the archive
      sidetier hydrate finish plan.json    configuration of the topics, group offsets, ACLs, quotas

    cluster.name is the name of the archived cluster. broker.bootstrap_servers is the new cluster.
    After the last step, start producers, consumers, and the sidecars of the new cluster. These
    sidecars need a cluster.name of their own.
    """  # noqa: D301 -- \b is click's marker and must be one character


@kernel.command("plan", parent=command, short_help="Plan what is restored, and show what is lost.")
def plan_command(options: PlanOptions) -> kernel.Outcome:
    """Read the archive, and write to the file PLAN what will be placed.

    First the command promotes the tail packs of the topics to segments of the archive, as
    `sidetier tail promote` does: the plan then restores these records, too. It needs permission to
    write to the store; --no-tail writes nothing there. If a pack is younger than 10 minutes, the
    cluster may be alive: then give --tail to promote nevertheless, or --no-tail.

    For each partition the table shows what is restored, how many offsets of it were only in tail
    packs, and what is lost: records after the archive end, records in packs behind a gap, and
    recorded gaps.

    \b
    Example:
      sidetier hydrate plan plan.json --until 2026-11-22T10:00:00Z --config old-cluster.yaml

    Exit codes: 0 the plan is written; 1 the store does not answer, or a tail could not be promoted,
    and no plan is written; 2 a setting is wrong, PLAN exists already, or the cluster may be alive;
    3 the plan is written, but --transaction-consistent cannot guarantee that every transaction is
    whole, or records in gaps are lost.
    """  # noqa: D301 -- \b is click's marker and must be one character
    with _needs_extras("plan"):
        from sidetier.cli.hydrate.steps import plan_restore  # noqa: PLC0415 -- needs the extras
    return plan_restore(quiet_config(options.call), options)


@kernel.command(
    "prepare", parent=command, short_help="Create the planned topics on the new cluster."
)
def prepare_command(options: PrepareOptions) -> kernel.Outcome:
    """Create the planned topics on the new cluster, with one replica and no retention.

    The command writes the topics' ids and the broker of each partition into PLAN. Then stop every
    broker cleanly (SIGTERM), and copy PLAN to each broker's host.

    \b
    Example:
      sidetier hydrate prepare plan.json --bootstrap-server new-1:9092 --config old-cluster.yaml

    Exit codes: 0 all topics exist; 1 the brokers refuse; 2 a topic exists that has records, several
    replicas or another number of partitions.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.placing import prepare_topics  # noqa: PLC0415 -- `--help` must not load Kafka's client

    return prepare_topics(quiet_config(options.call), options)


@kernel.command(
    "place", parent=command, short_help="Place this broker's partitions into its log dirs."
)
def place_command(options: PlaceOptions) -> kernel.Outcome:
    """Place this broker's partitions into its log dirs. The broker must be stopped.

    Run it on every broker's host, on several hosts at the same time if you like. It holds the
    broker's own lock, so that the broker cannot start meanwhile. It checks every CRC. A partition
    appears in its log dir as a whole. After an interruption the same command continues; it does not
    touch a partition that is already placed. Run it as the broker's user, or as root.

    \b
    Example:
      sidetier hydrate place plan.json --log-dir /var/lib/kafka/data --config old-cluster.yaml

    Exit codes: 0 every partition is placed; 1 a partition could not be placed; 2 a log dir is in
    use, or belongs to another cluster; 130 interrupted.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.placing import place_partitions  # noqa: PLC0415 -- as above

    return place_partitions(quiet_config(options.call), options)


@kernel.command(
    "replicate", parent=command, short_help="Abort open transactions, and add the replicas."
)
def replicate_command(options: ReplicateOptions) -> kernel.Outcome:
    """Abort open transactions and give the placed topics their replicas.

    The brokers must be running again. In this order, the command checks that every partition starts
    and ends where the plan says; aborts the transactions that were open at the end of the archive;
    raises the replication factor and waits until all replicas have caught up; uses up the producer
    ids that replicas remember from archived records. It writes the replication factor into PLAN.

    It needs the permission ClusterAction on the new cluster if that cluster has an authorizer.

    \b
    Example:
      sidetier hydrate replicate plan.json --replication-factor 3 --config old-cluster.yaml

    Exit codes: 0 done; 1 the brokers refuse, or a partition has no leader; 2 a partition is not
    placed as planned.
    """  # noqa: D301 -- \b is click's marker and must be one character
    with _needs_extras("replicate"):
        from sidetier.cli.hydrate.steps import replicate_topics  # noqa: PLC0415 -- needs the extras
    return replicate_topics(quiet_config(options.call), options)


@kernel.command(
    "verify", parent=command, short_help="Compare the restored records with the archive."
)
def verify_command(options: VerifyOptions) -> kernel.Outcome:
    """Read everything that was restored, and compare it with the archive.

    For each partition the command compares the bytes of all batches, the last stable offset and the
    aborted transactions. Where they differ, it consumes every record at both isolation levels, and
    compares the number of records, the first and the last offset, and a checksum over keys, values,
    headers and timestamps. For one partition of each topic it always consumes the last 1,000
    records. It also checks look-ups by time and a commit of the group sidetier-hydrate-verify, and
    with --produce it appends a record.

    \b
    Example:
      sidetier hydrate verify plan.json --config old-cluster.yaml

    Exit codes: 0 everything is equal; 1 the archive or the brokers cannot be read; 3 something
    differs.
    """  # noqa: D301 -- \b is click's marker and must be one character
    with _needs_extras("verify"):
        from sidetier.cli.hydrate.steps import verify_topics  # noqa: PLC0415 -- needs the extras
    return verify_topics(quiet_config(options.call), options)


@kernel.command(
    "finish", parent=command, short_help="Restore configuration, group offsets, ACLs, quotas."
)
def finish_command(options: FinishOptions) -> kernel.Outcome:
    """Set the topics' real configuration, and restore group offsets, ACLs and quotas.

    Run it after `sidetier hydrate verify`: afterwards the brokers delete records that are older
    than the topics' retention. The values come from the snapshots of the lost cluster. Without a
    snapshot, retention stays unlimited: set it yourself. The command lists a value that the new
    brokers refuse, and leaves it out. It lists leader.replication.throttled.replicas and
    follower.replication.throttled.replicas and does not restore them, because they name brokers of
    the lost cluster.

    \b
    Example:
      sidetier hydrate finish plan.json --config old-cluster.yaml

    Exit codes: 0 done; 1 the brokers do not answer; 2 an earlier step was not completed; 3 done,
    but the brokers refuse part of the topics' configuration.
    """  # noqa: D301 -- \b is click's marker and must be one character
    with _needs_extras("finish"):
        from sidetier.cli.hydrate.steps import finish_topics  # noqa: PLC0415 -- needs the extras
    return finish_topics(quiet_config(options.call), options)


def _needs_extras(step: str) -> AbstractContextManager[None]:
    return needs_extra(f"sidetier hydrate {step}", RECORD_PACKAGES, "consumer,mirror")
