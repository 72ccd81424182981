"""`sidetier can-i-lose`: which records would be lost with a broker and its disk."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from sidetier.cli import exits
from sidetier.cli.arguments import bootstrap_option, most_lines, sidecar_option, size_text
from sidetier.cli.inspect.cluster import need_cluster
from sidetier.cli.inspect.loss import Broker, Held, Risk, risks_of
from sidetier.cli.inspect.loss_facts import Asked, gather
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import Cell, OutputFormat, Table, emit, output_option
from sidetier.segments.errors import LeadershipUnavailableError

_MOST_ROWS = 40
_MOST_TOPICS = 5


@dataclass(frozen=True, slots=True)
class LoseResult:
    """Every partition on the broker, and what would be lost of it."""

    broker: Broker
    partitions: tuple[tuple[Held, tuple[Risk, ...]], ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, broker: Broker, held: Sequence[Held], notes: Sequence[str]) -> "LoseResult":
        """Decide about each partition."""
        return cls(
            broker,
            tuple((partition, risks_of(partition, broker)) for partition in held),
            tuple(notes),
        )

    @property
    def at_risk(self) -> list[tuple[Held, Risk]]:
        """One entry for each range that no other place has."""
        return [(held, risk) for held, risks in self.partitions for risk in risks]

    @property
    def can_be_lost(self) -> bool:
        """Whether the broker can be lost without losing records."""
        return not self.at_risk

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
            "broker_id": self.broker.broker_id,
            "can_be_lost": self.can_be_lost,
            "text": self.verdict(),
            "records_at_risk": self.records,
            "bytes_at_risk": self.size_bytes,
            "notes": list(self._notes()),
            "partitions": [_partition_json(held, risks) for held, risks in self.partitions],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the verdict on the first line, a row for each range at risk, and notes."""
        columns = ("PARTITION", "ROLE", "OFFSETS", "RECORDS", "BYTES", "WHY NOBODY ELSE HAS THEM")
        rows = [self._row(held, risk) for held, risk in self.at_risk]
        tables = [Table((), footer=self.verdict())]
        if rows:
            more = len(rows) - _MOST_ROWS
            footer = f"and {more} more: --output json has them all" if more > 0 else None
            tables.append(Table(columns, rows[:_MOST_ROWS], footer=footer))
        notes = most_lines(list(self._notes()))
        return (*tables, *(Table((), footer=line) for line in notes))

    def verdict(self) -> str:
        """Return one line: yes or no, and how much would be lost."""
        broker, count = self.broker.broker_id, len(self.partitions)
        if self.can_be_lost:
            return (
                f"yes: broker {broker} and its disk can be lost: all that it holds of {count} "
                "partitions is stored, or on another in-sync replica"
            )
        partitions = len({held.topic_partition for held, _ in self.at_risk})
        open_end = any(risk.records is None for _, risk in self.at_risk)
        amount = f"{'at least ' if open_end else ''}{self.records} records"
        if self.size_bytes is not None:
            amount += f" (in segments of {size_text(self.size_bytes)})"
        return (
            f"no: with broker {broker} and its disk {amount} would be lost, of {partitions} of "
            f"the {count} partitions on it"
        )

    def _row(self, held: Held, risk: Risk) -> Sequence[Cell]:
        role = "leader" if held.replicas.leader == self.broker.broker_id else "follower"
        return (
            str(held.topic_partition),
            role,
            f"[{_or_unknown(risk.start)}, {_or_unknown(risk.end)})",
            risk.records,
            size_text(risk.size_bytes),
            risk.why,
        )

    def _notes(self) -> Iterator[str]:
        yield from self.notes
        never = Counter(h.topic_partition.topic for h, _ in self.partitions if h.not_archived)
        if never:
            names = sorted(never)
            listed = ", ".join(names[:_MOST_TOPICS])
            listed += f" and {len(names) - _MOST_TOPICS} more" if len(names) > _MOST_TOPICS else ""
            yield f"never stored, so only as safe as their replicas: {listed}"
        unread = {h.archive_problem for h, _ in self.partitions if h.archive_problem}
        yield from (f"the archive could not be read: {problem}" for problem in sorted(unread))
        moving = sum(held.moving is not None for held, _ in self.partitions)
        if moving:
            yield (
                f"{moving} archives are being moved (quarantine or retirement): what is stored of "
                "them counts only as far as it stays; ask again when that is done"
            )
        short = [
            h for h, _ in self.partitions if len(h.replicas.in_sync) < len(h.replicas.replicas)
        ]
        if short:
            yield f"{len(short)} of its partitions are under-replicated"


def _or_unknown(offset: int | None) -> str:
    return "?" if offset is None else str(offset)


def _partition_json(held: Held, risks: Sequence[Risk]) -> dict[str, object]:
    return {
        "topic": held.topic_partition.topic,
        "partition": held.topic_partition.partition,
        "leader": held.replicas.leader,
        "replicas": list(held.replicas.replicas),
        "in_sync": list(held.replicas.in_sync),
        "log_start_offset": held.bounds.start,
        "high_watermark": held.bounds.high_watermark,
        "archived_to": held.next_offset,
        "archive_moving_to": held.moving,
        "not_archived": held.not_archived,
        "problem": held.archive_problem or held.bounds.problem,
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


@click.command(name="can-i-lose")
@click.argument("broker", type=click.IntRange(0, 2**31 - 1))
@sidecar_option(asked_for="Sidecar of that broker, which may hold deleted segments open.")
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context,
    broker: int,
    *,
    sidecar: str | None,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Show which records would be lost with a broker and its disk.

    The command checks every partition with a replica on BROKER (a broker id). Stored records are
    safe, and so are records on another in-sync replica that is up. All other records would be lost.
    So would segments that brokers deleted before they were stored and that only this broker's
    sidecar holds open. The command asks that sidecar if BROKER is this host's broker, or with
    --sidecar. Records above the high watermark (acks=0 or 1) are not counted. The answer is valid
    for this moment: ask again right before you act.

    It runs on any host that has the configuration. It sends one Metadata request, ListOffsets
    requests, and one request to the store for each partition. It changes nothing.

    \b
    Example:
      sidetier can-i-lose 3 --sidecar http://broker-3:9108 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 yes, it can be lost; 3 no; 1 no broker answers.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = invocation(context).load().config
    try:
        facts = gather(Asked(config, broker, sidecar), need_cluster(config, bootstrap))
    except LeadershipUnavailableError as error:
        raise LeadershipUnavailableError(
            f"{error}; --bootstrap-server names another broker"
        ) from error
    result = LoseResult.of(facts.broker, facts.held, facts.notes)
    emit(result, output)
    context.exit(exits.OK if result.can_be_lost else exits.FINDINGS)
