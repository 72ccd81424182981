"""`sidetier can-i-lose`: which records would be lost with a broker and its disk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import BOOTSTRAP, most_lines, sidecar_url, size_text
from sidetier.cli.inspect.facts import (
    BrokerFacts,
    BrokerQuestion,
    PartitionFacts,
    gather_broker,
    with_local_logs,
)
from sidetier.cli.inspect.loss import Risk, only_on_store, risks_of
from sidetier.cli.options import CommandOptions, argument, options
from sidetier.cli.output import Cell, Table, first_rows, range_text
from sidetier.config.problems import first_of
from sidetier.leadership.cluster_map import ReplicaSet, open_cluster
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError


@dataclass(frozen=True, slots=True)
class LoseResult:
    """Every partition on the broker, and its offsets that would be lost."""

    facts: BrokerFacts
    partitions: tuple[tuple[PartitionFacts, tuple[Risk, ...]], ...]

    @classmethod
    def of(cls, facts: BrokerFacts) -> "LoseResult":
        """Decide about each partition."""
        return cls(facts, tuple((part, risks_of(part, facts)) for part in facts.partitions))

    @property
    def at_risk(self) -> list[tuple[PartitionFacts, Risk]]:
        """One entry for each range that no other place has."""
        return [(partition, risk) for partition, risks in self.partitions for risk in risks]

    @property
    def can_be_lost(self) -> bool:
        """Whether the broker can be lost without losing records."""
        return not self.at_risk

    @property
    def exit_code(self) -> int:
        """FINDINGS if records would be lost."""
        return exits.OK if self.can_be_lost else exits.FINDINGS

    @property
    def records(self) -> int:
        """Number of offsets at risk, as far as they are known."""
        return sum(risk.records or 0 for _, risk in self.at_risk)

    @property
    def size_bytes(self) -> int | None:
        """Size of the segments that hold them; None if this host can see none of them."""
        sizes = [risk.size_bytes for _, risk in self.at_risk if risk.size_bytes is not None]
        return sum(sizes) if sizes else None

    def as_json(self) -> object:
        """Return the verdict, and every partition."""
        return {
            "broker_id": self.facts.broker_id,
            "can_be_lost": self.can_be_lost,
            "text": self.verdict(),
            "records_at_risk": self.records,
            "bytes_at_risk": self.size_bytes,
            "notes": list(self._notes()),
            "partitions": [
                _partition_json(partition, risks) for partition, risks in self.partitions
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the verdict on the first line, a row for each range at risk, and notes."""
        columns = ("PARTITION", "ROLE", "OFFSETS", "RECORDS", "BYTES", "WHY NO OTHER COPY")
        rows = [self._row(partition, risk) for partition, risk in self.at_risk]
        tables = [Table((), footer=self.verdict())]
        if rows:
            tables.append(first_rows(columns, rows))
        notes = most_lines(list(self._notes()))
        return (*tables, *(Table((), footer=line) for line in notes))

    def verdict(self) -> str:
        """Return one line: yes or no, and how much would be lost."""
        broker, count = self.facts.broker_id, len(self.facts.partitions)
        if self.can_be_lost:
            return (
                f"yes: broker {broker} and its disk can be lost: every committed record of its "
                f"{count} partitions is archived, or on another in-sync replica"
            )
        partitions = len({partition.topic_partition for partition, _ in self.at_risk})
        open_end = any(risk.records is None for _, risk in self.at_risk)
        amount = f"{'at least ' if open_end else ''}{self.records} records"
        if self.size_bytes is not None:
            amount += f" (in segments of {size_text(self.size_bytes)})"
        return (
            f"no: with broker {broker} and its disk, {amount} in {partitions} of its {count} "
            "partitions would be lost"
        )

    def _row(self, partition: PartitionFacts, risk: Risk) -> Sequence[Cell]:
        is_leader = partition.replicas is not None and (
            partition.replicas.leader == self.facts.broker_id
        )
        return (
            str(partition.topic_partition),
            "leader" if is_leader else "follower",
            range_text(risk.start, risk.end),
            risk.records,
            size_text(risk.size_bytes),
            risk.why,
        )

    def _notes(self) -> Iterator[str]:
        partitions = self.facts.partitions
        yield from self.facts.notes
        excluded = sorted({p.topic_partition.topic for p in partitions if p.exclusion})
        if excluded:
            names = first_of(excluded)
            yield f"never archived, so only as safe as their replicas: {names}"
        unread = {p.archive_problem for p in partitions if p.archive_problem}
        yield from (f"the archive could not be read: {problem}" for problem in sorted(unread))
        moving = sum(p.archive_moving_to is not None for p in partitions)
        if moving:
            yield (
                f"{moving} archives are being moved (quarantine or retirement): only the part that "
                "stays counts as archived; ask again after the move"
            )
        on_store = [offsets for p in partitions if (offsets := only_on_store(p)) is not None]
        if on_store:
            yield (
                f"only the store has {sum(offsets.size for offsets in on_store)} records of "
                f"{len(on_store)} partitions, below their log start offsets: they do not depend on "
                "this broker, and would be lost with the store"
            )
        replicas = [p.replicas for p in partitions if p.replicas is not None]
        short = sum(len(held.in_sync) < len(held.replicas) for held in replicas)
        if short:
            yield f"{short} of its partitions are under-replicated"


def _partition_json(partition: PartitionFacts, risks: Sequence[Risk]) -> dict[str, object]:
    replicas = partition.replicas or ReplicaSet(None)
    exclusion = partition.exclusion
    on_store = only_on_store(partition)
    return {
        **partition.topic_partition._asdict(),
        "leader": replicas.leader,
        "replicas": list(replicas.replicas),
        "in_sync": list(replicas.in_sync),
        "log_start_offset": partition.log_offsets.start,
        "high_watermark": partition.log_offsets.high_watermark,
        "archived_from": partition.archived_from,
        "archived_to": partition.archived_up_to,
        "archive_moving_to": partition.archive_moving_to,
        "only_on_store": None
        if on_store is None
        else {"start_offset": on_store.start, "end_offset": on_store.end},
        "not_archived": None if exclusion is None else exclusion.reason,
        "problem": partition.archive_problem or partition.log_offsets.problem,
        "at_risk": [
            {
                "start_offset": risk.start,
                "end_offset": risk.end,
                "records": risk.records,
                "bytes": risk.size_bytes,
                "why": risk.why,
            }
            for risk in risks
        ],
    }


@options
class LoseOptions(CommandOptions):
    """Options of `sidetier can-i-lose`."""

    broker: int = argument(type=click.IntRange(0, 2**31 - 1))
    sidecar: str | None = sidecar_url(
        asked_for="Sidecar of that broker, which may hold deleted segments open."
    )
    bootstrap: str | None = BOOTSTRAP


@kernel.command("can-i-lose")
def command(options: LoseOptions) -> LoseResult:
    """Show which records would be lost with a broker and its disk.

    The command checks every partition with a replica on BROKER (a broker id). Archived records are
    safe, and so are records on another in-sync replica that is up. All other records would be lost.
    So would segments that brokers deleted before they were archived and that only this broker's
    sidecar holds open. The command asks that sidecar if BROKER is this host's broker, or with
    --sidecar. Records below the log start offset that only the store has (local retention) do not
    depend on BROKER: a note has their number. Records above the high watermark (acks=0 or 1) are
    not counted. The answer is valid for this moment: ask again right before you act.

    It runs on any host that has the configuration. It sends one Metadata request, ListOffsets
    requests, and one request to the store for each partition. It changes nothing.

    \b
    Example:
      sidetier can-i-lose 3 --sidecar http://broker-3:9108 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 yes, it can be lost; 3 no; 1 no broker answers.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = options.call.load().config
    cluster = open_cluster(config, options.bootstrap)
    if cluster is None:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set: give the cluster's address by --bootstrap-server"
        )
    try:
        facts = gather_broker(BrokerQuestion(config, options.broker, options.sidecar), cluster)
    except LeadershipUnavailableError as error:
        raise LeadershipUnavailableError(
            f"{error}; --bootstrap-server names another broker"
        ) from error
    at_risk = {p.topic_partition for p in facts.partitions if risks_of(p, facts)}
    return LoseResult.of(with_local_logs(facts, config, at_risk))
