"""`sidetier ack-gap`: accept a gap, with a reason."""

import getpass
import time
from dataclasses import dataclass

import click

from sidetier.archive.objects.acknowledgements import (
    Acknowledgement,
    accept_loss,
    acknowledge_gap,
)
from sidetier.cli import kernel
from sidetier.cli.arguments import PARTITION, topic_name
from sidetier.cli.options import CommandOptions, argument, option, options
from sidetier.cli.output import Result, Table
from sidetier.cli.stores import open_every_store
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_OFFSET = click.IntRange(0, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class AckResult(Result):
    """An acknowledged gap. `is_new` is False if it had been acknowledged before.

    Attributes:
        in_advance: Whether the sidecar has yet to record the gap.
    """

    topic_partition: TopicPartition
    gap: OffsetRange
    key: str
    is_new: bool
    in_advance: bool = False

    def as_json(self) -> object:
        """Return the gap and the key of its acknowledgement."""
        return {
            **self.topic_partition._asdict(),
            "start_offset": self.gap.start,
            "end_offset": self.gap.end,
            "key": self.key,
            "new": self.is_new,
        }

    def as_tables(self) -> list[Table]:
        """Return one line."""
        text = f"{self.topic_partition}: the gap {self.gap} "
        text += "is acknowledged" if self.is_new else "was acknowledged before; its reason stays"
        if self.in_advance:
            text += "; the sidecar looks at its segments within 5 minutes"
        return [Table((), footer=f"{text} ({self.key})")]


def _reason(text: str) -> str:
    if not text.strip():
        raise ValueError("say why the loss is accepted")
    return text.strip()


@options
class AckGapOptions(CommandOptions):
    """Options of `sidetier ack-gap`."""

    topic: str = argument(parse=topic_name)
    partition: int = argument(type=PARTITION)
    start: int = argument(type=_OFFSET)
    end: int = argument(type=_OFFSET)
    reason: str = option(
        "--reason",
        required=True,
        parse=_reason,
        help="Why the loss is accepted. Stored beside the gap record, with the user and the time.",
    )
    user: str | None = option(
        "--user", help="Name to store.  [default: the account that runs the command]"
    )
    unarchivable: bool = option(
        "--unarchivable",
        help="Accept in advance that records of message format v0 or v1 are not archived. START is "
        "where the archive ends.",
    )


@kernel.command("ack-gap")
def command(options: AckGapOptions) -> AckResult:
    """Accept a recorded gap: records that were deleted before they could be archived.

    START is the first missing offset, END the first offset after the gap, as `sidetier verify` and
    the log event gap.recorded show them. The gap record stays, because readers need it. The metric
    sidetier_unresolved_gap_records and the alert SidetierGapFound no longer count the gap: the
    sidecar reads the acknowledgement within 5 minutes. `sidetier verify` shows it with severity
    info.

    With --unarchivable the gap does not have to be recorded yet: segments of message format v0 or
    v1 cannot be archived, and hold what follows them. Take START and END from `sidetier status` or
    `sidetier backfill --dry-run`. The leader's sidecar then records a gap for those segments in
    the range that have such a format, and for no other records.

    \b
    Example:
      sidetier ack-gap orders 3 1200 7200 --reason "retention of 1 h during the outage, INC-42"
      sidetier ack-gap old 0 0 9000 --unarchivable --reason "copied to orders-v2"

    Exit codes: 0 the gap is acknowledged, also if it was before; 1 the store does not answer; 2 no
    such gap is recorded, or (--unarchivable) START is below the archive end.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = options.call.load(needs_log_dirs=False).config.with_short_timeouts()
    tp = TopicPartition(options.topic, options.partition)
    gap = OffsetRange(Offset(options.start), Offset(options.end))
    acknowledgement = Acknowledgement(
        options.reason, options.user or _account(), time.time_ns() // 1_000_000
    )
    with open_every_store(config) as stores:
        store = stores.store(tp.topic)
        acknowledge = accept_loss if options.unarchivable else acknowledge_gap
        layout = stores.layout
        is_new = acknowledge(store, layout, tp, gap, acknowledgement)
    key = layout.acknowledgement_key(layout.gap_key(tp, gap.start, gap.end))
    return AckResult(tp, gap, key, is_new, options.unarchivable)


def _account() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return None
