"""How a manifest changes. Pure."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sidetier.pipeline.export.epoch_history import (
    Position,
    Rows,
    epoch_history_of,
    followed,
    rows_of,
    shortened,
)
from sidetier.pipeline.export.errors import OtherExportError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.state.manifest import (
    MOST_FILES,
    FileEntry,
    Manifest,
    MissingEntry,
    Run,
    SchemaIds,
    Span,
)
from sidetier.segments.offsets import Offset, TopicPartition

_T = TypeVar("_T")

_SWEEPS: Final = 2
"""A writer that was thought dead may still write while the next run is under way."""
_NEVER: Final = 1 << 63
"""Above every offset."""
_SETTLED: Final = (
    "topics_dir",
    "partitioner",
    "partition_fields",
    "path_format",
    "partition_duration_ms",
    "timezone",
    "locale",
    "timestamp_field",
    "format",
    "layout",
    "isolation",
)
"""What readers of an output count on; the rest may change from run to run."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What of a run only the brokers have: where those spans end; the topic's id; and which leader
    epochs have written what lies below the ends of all spans.
    """

    ends: Mapping[int, int] = field(default_factory=dict)
    topic_id: str | None = None
    epochs: Mapping[int, Rows] = field(default_factory=dict)


def epochs_of(positions: Mapping[TopicPartition, Position]) -> dict[int, Rows]:
    """What is kept of their epoch histories, where any is known."""
    return {
        tp.partition: rows_of(one.epoch_history)
        for tp, one in positions.items()
        if one.epoch_history.entries
    }


def standing(manifest: Manifest) -> dict[int, Position]:
    """Where an export stands."""
    return _positions(manifest.next_offsets, manifest.epochs)


def planned(run: Run) -> dict[int, Position]:
    """Where a run ends."""
    return _positions({one: span.until for one, span in run.spans.items()}, run.epochs)


def _positions(ends: Mapping[int, int], epochs: Mapping[int, Rows]) -> dict[int, Position]:
    return {
        partition: Position(Offset(ends[partition]), epoch_history_of(rows))
        for partition, rows in epochs.items()
        if partition in ends
    }


def begun(
    manifest: Manifest,
    spans: Mapping[int, Span],
    options: FilesOptions,
    nonce: str,
    tail: Tail,
) -> Manifest:
    """A run is under way."""
    run = Run(
        generation=manifest.generation + 1,
        nonce=nonce,
        spans=dict(spans),
        options=options,
        tail=dict(tail.ends),
        topic_id=tail.topic_id,
        epochs=dict(tail.epochs),
    )
    return manifest.model_copy(
        update={"generation": run.generation, "pending": run, "nonce": nonce}
    )


def committed(
    manifest: Manifest,
    files: Iterable[FileEntry],
    missing: Iterable[MissingEntry],
    nonce: str,
    *,
    swept: bool,
    schemas: Mapping[int, SchemaIds] | None = None,
) -> Manifest:
    """The files of the run are the export's; their last rows have these schemas."""
    run = manifest.pending
    if run is None:
        raise ValueError("no run is under way")
    new = tuple(files)
    ends = {partition: span.until for partition, span in run.spans.items()}
    sweeps = max(manifest.sweeps - 1, 0) if swept else manifest.sweeps
    changes: dict[str, object] = {
        "next_offsets": {**manifest.next_offsets, **ends},
        "pending": None,
        "options": run.options,
        "missing": tuple(missing),
        "tail": {**manifest.tail, **run.tail},
        "topic_id": run.topic_id or manifest.topic_id,
        "epochs": {**without(manifest.epochs, ends), **_followed(manifest, run)},
        "replacing": without(manifest.replacing, ends),
        "unfinished": manifest.unfinished if run.options.whole_files else {},
        "schemas": {**without(manifest.schemas, ends), **(schemas or {})},
        "sweeps": sweeps,
        "swept_directories": manifest.swept_directories if sweeps else (),
        "nonce": nonce,
    }
    return manifest.model_copy(update={**changes, **_named(manifest, run, new, ends)})


def _followed(manifest: Manifest, run: Run) -> dict[int, Rows]:
    before, after = standing(manifest), planned(run)
    kept = {
        one: followed(
            before.get(one, Position(Offset(0))), after.get(one, Position(Offset(span.until)))
        )
        for one, span in run.spans.items()
    }
    return {
        one: rows_of(epoch_history) for one, epoch_history in kept.items() if epoch_history.entries
    }


def _named(
    manifest: Manifest, run: Run, new: tuple[FileEntry, ...], ends: Mapping[int, int]
) -> dict[str, object]:
    """The files that are named from now on, and from where on they are all."""
    starts = {partition: span.first for partition, span in run.spans.items()}
    if len(manifest.files) + len(new) <= MOST_FILES:
        return {"files": manifest.files + new, "named_from": {**starts, **manifest.named_from}}
    if len(new) <= MOST_FILES:
        return {"files": new, "named_from": {**manifest.next_offsets, **starts}}
    return {"files": (), "named_from": {**manifest.next_offsets, **ends}}


def with_whole_files(manifest: Manifest, ends: Mapping[int, int]) -> Manifest:
    """The plan that is under way, as far as whole files go: up to `ends`, by Kafka partition. What
    lies above is left to a later run.
    """
    run = manifest.pending
    if run is None:
        raise ValueError("no run is under way")
    reached = {one: end for one, end in ends.items() if end > run.spans[one].first}
    at_end = planned(run)
    kept = {
        one: shortened(at_end[one], Offset(end)) for one, end in reached.items() if one in at_end
    }
    shorter = run.model_copy(
        update={
            "spans": {
                one: Span(first=run.spans[one].first, until=end) for one, end in reached.items()
            },
            "tail": {one: end for one, end in reached.items() if one in run.tail},
            "epochs": {
                one: rows_of(epoch_history)
                for one, epoch_history in kept.items()
                if epoch_history.entries
            },
        }
    )
    unfinished = {
        one: span.until for one, span in run.spans.items() if reached.get(one) != span.until
    }
    changes = {
        "pending": shorter,
        "unfinished": {**without(manifest.unfinished, run.spans), **unfinished},
    }
    return manifest.model_copy(update=changes)


def waits_for_more(manifest: Manifest, options: FilesOptions, partition: int, span: Span) -> bool:
    """Whether a range was read already, by the same rules, and does not fill a file."""
    before = manifest.options
    if not options.whole_files or before is None:
        return False
    rules = ("whole_files", "flush_size", "rotate_interval_ms", "max_open_files")
    is_same = all(getattr(before, name) == getattr(options, name) for name in rules)
    return is_same and manifest.unfinished.get(partition) == span.until


def withdrawn(manifest: Manifest, nonce: str) -> Manifest:
    """The run is given up: what it has written is to be looked for."""
    places = set(manifest.swept_directories)
    if manifest.pending is not None:
        places |= manifest.pending.directories
    changes = {"pending": None, "sweeps": _SWEEPS, "swept_directories": tuple(sorted(places))}
    return manifest.model_copy(update={**changes, "nonce": nonce})


def rewound(manifest: Manifest, forks: Mapping[int, Offset], where: str) -> Manifest:
    """What was exported from the forks on, and all that shares a file with it, is no part of the
    output any more: it is to be exported anew, and its files are to be looked for. No run may be
    under way.

    Raises:
        OtherExportError: the manifest does not name all of those files any more.
    """
    starts = {one: _first_of_files(manifest, one, fork) for one, fork in forks.items()}
    for partition, start in starts.items():
        if start < manifest.named_from.get(partition, 0):
            raise OtherExportError(
                f"{where}: does not name the files any more that hold offset {forks[partition]} of "
                f"partition {partition}: export the topic into another directory"
            )
    files = tuple(one for one in manifest.files if one.first < starts.get(one.partition, _NEVER))
    gone = [one.key for one in manifest.files if one not in files]
    places = set(manifest.swept_directories) | {_directory_of(key, manifest.topic) for key in gone}
    if manifest.options is not None:
        places |= manifest.options.directories
    # A plan in between may have been given up: then its offset is not how far the files go.
    ends = {one: max(manifest.next_offsets[one], manifest.replacing.get(one, 0)) for one in starts}
    changes: dict[str, object] = {
        "next_offsets": {**manifest.next_offsets, **starts},
        "files": files,
        "tail": without(manifest.tail, starts),
        "epochs": {**without(manifest.epochs, starts), **_shortened(manifest, starts)},
        "replacing": {**manifest.replacing, **ends},
        "unfinished": without(manifest.unfinished, starts),
        "schemas": without(manifest.schemas, starts),
        "sweeps": _SWEEPS,
        "swept_directories": tuple(sorted(places)),
    }
    return manifest.model_copy(update=changes)


def _shortened(manifest: Manifest, starts: Mapping[int, int]) -> dict[int, Rows]:
    """What is known below the new next offsets: another fork may come before the next commit."""
    stood = {one: at for one, at in standing(manifest).items() if one in starts}
    kept = {one: shortened(at, Offset(starts[one])) for one, at in stood.items()}
    return {
        one: rows_of(epoch_history) for one, epoch_history in kept.items() if epoch_history.entries
    }


def _directory_of(key: str, topic: str) -> str:
    """Below which a file lies: it may have been written with other options than the last ones.
    Where its path names the topic twice it is the longer one: nothing of others lies there.
    """
    return key.rpartition(f"/{topic}/")[0]


def _first_of_files(manifest: Manifest, partition: int, fork: Offset) -> int:
    """Where the files begin that hold the fork, or what shares a file with what goes."""
    first: int = fork
    ours = (one for one in manifest.files if one.partition == partition)
    for one in sorted(ours, key=lambda one: one.first, reverse=True):
        if one.first < first <= one.last:
            first = one.first
    return first


def without(known: Mapping[int, _T], gone: Container[int]) -> dict[int, _T]:
    """Those of other partitions."""
    return {partition: one for partition, one in known.items() if partition not in gone}


def check_settled(manifest: Manifest, options: FilesOptions, where: str) -> None:
    """Raises OtherExportError where an output would become a mixture."""
    if manifest.options is None:
        return
    for name in _SETTLED:
        before, now = getattr(manifest.options, name), getattr(options, name)
        if before != now:
            raise OtherExportError(
                f"{where}: was written with {name.replace('_', ' ')} {_shown(before)}, now it is "
                f"{_shown(now)}: choose another directory, or --accept-changes to go on"
            )


def check_same_export(manifest: Manifest, cluster: str, asked: str | None, where: str) -> None:
    """Raises OtherExportError where the output is of another cluster, or another range."""
    if manifest.cluster != cluster:
        raise OtherExportError(
            f"{where}: is an export of cluster {manifest.cluster}, not {cluster}"
        )
    if manifest.asked != asked:
        raise OtherExportError(
            f"{where}: is an export of {manifest.asked or 'all that comes'}, not of "
            f"{asked or 'all that comes'}: choose another directory"
        )


def _shown(value: object) -> str:
    return "none" if value in (None, ()) else str(value)
