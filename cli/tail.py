"""The tails of a cluster: their results for people and scripts, and their promotion."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.tail.survey import BrokerTail, PartitionTail, TailSurvey
from sidetier.cli import exits
from sidetier.cli.arguments import PROMOTED_AT_ONCE, age_text, most_lines, size_text
from sidetier.cli.output import Cell, Table, first_rows, range_text, say
from sidetier.config.model import Config
from sidetier.config.times import time_text
from sidetier.uploader.promote import Promoted, promote
from sidetier.uploader.wiring import promotion_places


def promote_tails(
    config: Config,
    archive: ArchiveAccess,
    tails: Iterable[PartitionTail],
    work_dir: Path | None,
    parallel: int = PROMOTED_AT_ONCE,
    *,
    accept_unread: bool = False,
) -> list[Promoted]:
    """Store tails as segments, and report the progress of long promotions.

    `work_dir` is None for the system's directory of temporary files.
    """
    directory = Path(tempfile.gettempdir()) if work_dir is None else work_dir
    places, tails = promotion_places(config, archive), list(tails)
    done = 0

    def on_progress(partitions: int) -> None:
        nonlocal done
        done += partitions
        if done < len(tails):
            say(f"{done} of {len(tails)} partitions are promoted")

    return promote(
        archive,
        places,
        tails,
        directory,
        parallel=parallel,
        accept_unread=accept_unread,
        on_progress=on_progress,
    )


@dataclass(frozen=True, slots=True)
class StatusResult:
    """Output of `sidetier tail status`. `now` is in seconds since 1970."""

    cluster: str
    found: TailSurvey
    now: float

    @property
    def exit_code(self) -> int:
        """FINDINGS if a pack cannot be read, or records of packs are not part of the tail."""
        return _exit_code(self.found)

    def as_json(self) -> object:
        """Return brokers, partitions and problems."""
        return {
            "cluster": self.cluster,
            "brokers": [_broker_fields(broker, self.now) for broker in self.found.brokers],
            "partitions": [partition_fields(tail, self.now) for tail in self.found.partitions],
            "problems": dict(self.found.problems),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each broker, then one for each partition with a tail."""
        if not self.found.brokers:
            text = f"cluster {self.cluster} has no tail packs: see uploader.tail.interval"
            return (Table((), footer="\n".join([*problem_lines(self.found), text])),)
        columns = ("BROKER", "PACKS", "SIZE", "LIVE", "NEWEST PACK", "STORE")
        rows = [_broker_cells(broker, self.now) for broker in self.found.brokers]
        return (Table(columns, rows), partitions_table(self.found, self.now))


def partitions_table(found: TailSurvey, now: float, footer: str | None = None) -> Table:
    """Return a row for each partition whose tail has records or a problem, and why."""
    shown = [tail for tail in found.partitions if tail.has_records or _notes(tail)]
    shown.sort(key=lambda tail: not _notes(tail))
    columns = ("PARTITION", "ARCHIVED UP TO", "FROM THE TAIL", "SAFE UP TO", "NEWEST RECORD", "AGE")
    table = first_rows(columns, [_partition_cells(tail, now) for tail in shown])
    idle = len(found.partitions) - len(shown)
    lines = [table.footer or "", *partition_lines(found), *problem_lines(found)]
    if idle:
        lines.append(f"{idle} partitions have no record in packs that is not archived")
    lines.append(footer or "")
    text = "\n".join(line for line in lines if line) or None
    return Table(columns if shown else (), table.rows, footer=text)


def partition_lines(found: TailSurvey) -> list[str]:
    """Return what is lost of each partition, and why."""
    return most_lines([f"{tail.tp}: {note}" for tail in found.partitions for note in _notes(tail)])


def problem_lines(found: TailSurvey) -> list[str]:
    """Return the packs that cannot be read."""
    return most_lines(list(found.problems.values()))


def is_whole(found: TailSurvey) -> bool:
    """Whether all packs can be read, and all their records are archived or safe."""
    return not found.problems and not any(_notes(tail) for tail in found.partitions)


def _exit_code(found: TailSurvey) -> int:
    return exits.OK if is_whole(found) else exits.FINDINGS


def _notes(tail: PartitionTail) -> list[str]:
    if tail.problem is not None:
        return [tail.problem]
    notes = []
    if tail.stale_offsets:
        notes.append(
            f"{tail.stale_offsets} offsets were committed, and the newest leader has lost them: an "
            "unclean election, or a power failure. Only packs have these records"
        )
    if tail.gap is not None:
        notes.append(f"offsets {range_text(*tail.gap)} are lost: no pack has them")
    notes += [
        f"offsets {range_text(*out.offsets)} of {out.source.stored_in.key} are not used: {out.text}"
        for out in tail.not_read
    ]
    return notes


def _broker_fields(broker: BrokerTail, now: float) -> dict[str, Any]:
    return {
        "broker": broker.broker,
        "url": broker.url,
        "packs": broker.packs,
        "size_bytes": broker.size,
        "live_bytes": broker.live_bytes,
        "newest_pack_ms": broker.newest_ms,
        "newest_pack_age_seconds": _age(broker.newest_ms, now),
    }


def _broker_cells(broker: BrokerTail, now: float) -> Sequence[Cell]:
    share = 100 * broker.live_bytes // broker.size if broker.size else 0
    return (
        broker.broker,
        broker.packs,
        size_text(broker.size),
        f"{min(share, 100)}%",
        _ago(broker.newest_ms, now),
        broker.url,
    )


def partition_fields(tail: PartitionTail, now: float) -> dict[str, Any]:
    """Return the JSON form of a partition."""
    merged = tail.merged
    newest_ms = None if merged is None else merged.newest_ms
    archived, safe = tail.archived_up_to, tail.safe_up_to
    return {
        **tail.tp._asdict(),
        "topic_id": None if merged is None else merged.topic_id,
        "archived_up_to": archived,
        "safe_up_to": safe,
        "tail_offsets": tail.offsets,
        "tail_size_bytes": tail.size,
        "newest_record_ms": newest_ms,
        "newest_record_age_seconds": _age(newest_ms, now),
        "leader_epoch": None if merged is None else merged.leader_epoch,
        "brokers": sorted({row.pack.broker for row in tail.rows if row.pack is not None}),
        "stale_offsets": tail.stale_offsets,
        "gap": None if tail.gap is None else _range(*tail.gap),
        "not_used": [
            {**_range(*out.offsets), "reason": str(out.reason), "text": out.text}
            for out in tail.not_read
        ],
        "problem": tail.problem,
    }


def _range(start: int, end: int) -> dict[str, int]:
    return {"start_offset": start, "end_offset": end}


def _partition_cells(tail: PartitionTail, now: float) -> Sequence[Cell]:
    newest_ms = None if tail.merged is None else tail.merged.newest_ms
    return (
        str(tail.tp),
        tail.archived_up_to,
        tail.offsets,
        tail.safe_up_to,
        _time(newest_ms),
        _ago(newest_ms, now),
    )


def _age(milliseconds: int | None, now: float) -> float | None:
    return None if milliseconds is None else round(max(now - milliseconds / 1000, 0.0), 3)


def _ago(milliseconds: int | None, now: float) -> str | None:
    return age_text(_age(milliseconds, now))


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else time_text(milliseconds)


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """Output of `sidetier tail promote --dry-run`."""

    found: TailSurvey
    now: float

    @property
    def exit_code(self) -> int:
        """FINDINGS if a pack cannot be read, or records of packs would not be promoted."""
        return _exit_code(self.found)

    def as_json(self) -> object:
        """Return the partitions."""
        return {
            "dry_run": True,
            "partitions": [partition_fields(tail, self.now) for tail in self.found.partitions],
            "problems": dict(self.found.problems),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition that has records to promote, or a problem."""
        tails = [tail for tail in self.found.partitions if tail.has_records]
        offsets, size = sum(tail.offsets for tail in tails), sum(tail.size for tail in tails)
        footer = (
            f"dry run, nothing was written: {offsets} offsets of {len(tails)} partitions to "
            f"promote, {size_text(size)}"
        )
        return (partitions_table(self.found, self.now, footer),)


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """Output of `sidetier tail promote`."""

    found: TailSurvey
    done: Sequence[Promoted]
    now: float

    @property
    def exit_code(self) -> int:
        """FINDINGS if something was not promoted."""
        failed = any(each.problem for each in self.done)
        return exits.FINDINGS if failed else _exit_code(self.found)

    def as_json(self) -> object:
        """Return the partitions, as they were before and with the result."""
        return {
            "dry_run": False,
            "partitions": [
                {
                    **partition_fields(each.tail, self.now),
                    "segments": each.segments,
                    "archived_up_to": each.archived_up_to,
                    "problem": each.problem or each.tail.problem,
                }
                for each in self.done
            ],
            "problems": dict(self.found.problems),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition that was promoted, or was not."""
        shown = [each for each in self.done if each.segments or each.problem]
        shown.sort(key=lambda each: each.problem is None)
        columns = ("PARTITION", "SEGMENTS", "ARCHIVED UP TO", "NEWEST RECORD")
        table = first_rows(columns, [_promoted_cells(each) for each in shown])
        problems = [f"{each.tail.tp}: {each.problem}" for each in shown if each.problem]
        segments = sum(each.segments for each in self.done)
        partitions = sum(each.segments > 0 for each in self.done)
        lines = [
            table.footer or "",
            *most_lines(problems),
            *partition_lines(self.found),
            *problem_lines(self.found),
            f"{partitions} partitions promoted, {segments} segments stored",
        ]
        footer = "\n".join(line for line in lines if line)
        return (Table(columns if shown else (), table.rows, footer=footer),)


def _promoted_cells(done: Promoted) -> Sequence[Cell]:
    newest_ms = None if done.tail.merged is None else done.tail.merged.newest_ms
    return str(done.tail.tp), done.segments, done.archived_up_to, _time(newest_ms)
