"""Pure functions that return a changed copy of an export's manifest."""

from collections.abc import Container, Iterable, Mapping
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
from sidetier.pipeline.export.sinks.files.manifest import (
    MAX_FILES,
    FileEntry,
    Manifest,
    MissingEntry,
    Run,
    SchemaIds,
    Span,
)
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.state import Tail
from sidetier.segments.offsets import Offset, TopicPartition

_T = TypeVar("_T")

_SWEEPS: Final = 2
"""Number of sweeps after a plan was withdrawn. One is not enough: a writer that seemed dead may
still write during the next run.
"""
_NEVER: Final = 1 << 63
"""Larger than every offset."""
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
"""Options that readers of an output rely on. The other options may change from run to run."""


def committed_positions(manifest: Manifest) -> dict[int, Position]:
    """Return the positions up to which the export has committed, by Kafka partition."""
    return _positions(manifest.next_offsets, manifest.epochs)


def planned_positions(run: Run) -> dict[int, Position]:
    """Return the positions at which a run ends, by Kafka partition."""
    return _positions({partition: span.until for partition, span in run.spans.items()}, run.epochs)


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
    """Return the manifest with a new run under way.

    Args:
        manifest: the manifest without a run.
        spans: the offsets to export, by Kafka partition.
        options: the options of the run.
        nonce: nonce of this write, and of the run.
        tail: what is known of the records of `spans`; see `Source.tail`.
    """
    run = Run(
        generation=manifest.generation + 1,
        nonce=nonce,
        spans=dict(spans),
        options=options,
        tail={tp.partition: int(offset) for tp, offset in tail.offsets.items()},
        topic_id=tail.topic_ids.get(manifest.topic),
        epochs={
            tp.partition: rows_of(epoch_history)
            for tp, epoch_history in tail.epoch_histories.items()
        },
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
    """Return the manifest after a run: its files are part of the output, and no run is under way.

    Args:
        manifest: the manifest with the run under way.
        files: files that the run has written.
        missing: ranges that the run has skipped because they are not stored.
        nonce: nonce of this write.
        swept: whether the run has removed the files of withdrawn plans.
        schemas: schema ids of the last rows, by Kafka partition.

    Raises:
        ValueError: no run is under way.
    """
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
    before, after = committed_positions(manifest), planned_positions(run)
    kept = {
        partition: followed(
            before.get(partition, Position(Offset(0))),
            after.get(partition, Position(Offset(span.until))),
        )
        for partition, span in run.spans.items()
    }
    return {
        partition: rows_of(epoch_history)
        for partition, epoch_history in kept.items()
        if epoch_history.entries
    }


def _named(
    manifest: Manifest, run: Run, new: tuple[FileEntry, ...], ends: Mapping[int, int]
) -> dict[str, object]:
    """Return `files` and `named_from`. The oldest files are dropped if there are too many
    to name.
    """
    starts = {partition: span.first for partition, span in run.spans.items()}
    if len(manifest.files) + len(new) <= MAX_FILES:
        # An entry that exists stays: `files` has all files since then.
        return {"files": manifest.files + new, "named_from": {**starts, **manifest.named_from}}
    if len(new) <= MAX_FILES:
        # The older files are no longer named: the names begin with this
        # run, and for other partitions with what they export next.
        return {"files": new, "named_from": {**manifest.next_offsets, **starts}}
    return {"files": (), "named_from": {**manifest.next_offsets, **ends}}


def with_whole_files(manifest: Manifest, ends: Mapping[int, int]) -> Manifest:
    """Return the manifest with its run cut back to whole files.

    Args:
        manifest: the manifest with the run under way.
        ends: end offset of the last whole file, exclusive, by Kafka partition. A later run exports
            what is above.

    Raises:
        ValueError: no run is under way.
    """
    run = manifest.pending
    if run is None:
        raise ValueError("no run is under way")
    # A partition without a whole file leaves the run.
    reached = {
        partition: end for partition, end in ends.items() if end > run.spans[partition].first
    }
    at_end = planned_positions(run)
    kept = {
        partition: shortened(at_end[partition], Offset(end))
        for partition, end in reached.items()
        if partition in at_end
    }
    shorter = run.model_copy(
        update={
            "spans": {
                partition: Span(first=run.spans[partition].first, until=end)
                for partition, end in reached.items()
            },
            "tail": {partition: end for partition, end in reached.items() if partition in run.tail},
            "epochs": {
                partition: rows_of(epoch_history)
                for partition, epoch_history in kept.items()
                if epoch_history.entries
            },
        }
    )
    unfinished = {
        partition: span.until
        for partition, span in run.spans.items()
        if reached.get(partition) != span.until
    }
    changes = {
        "pending": shorter,
        "unfinished": {**without(manifest.unfinished, run.spans), **unfinished},
    }
    return manifest.model_copy(update=changes)


def waits_for_more(
    manifest: Manifest, options: FilesOptions, tp: TopicPartition, end: Offset
) -> bool:
    """Return whether a run with the same rules has read up to `end` without filling a file."""
    before = manifest.options
    if not options.whole_files or before is None:
        return False
    rules = ("whole_files", "flush_size", "rotate_interval_ms", "max_open_files")
    is_same = all(getattr(before, name) == getattr(options, name) for name in rules)
    return is_same and manifest.unfinished.get(tp.partition) == end


def withdrawn(manifest: Manifest, nonce: str) -> Manifest:
    """Return the manifest without its run. Later runs sweep the withdrawn run's directories."""
    places = set(manifest.swept_directories)
    if manifest.pending is not None:
        places |= manifest.pending.directories
    changes = {"pending": None, "sweeps": _SWEEPS, "swept_directories": tuple(sorted(places))}
    return manifest.model_copy(update={**changes, "nonce": nonce})


def rewound(manifest: Manifest, divergence_offsets: Mapping[int, Offset], where: str) -> Manifest:
    """Return the manifest as of before `divergence_offsets`, which are by Kafka partition.

    Records at and above these offsets, and all records that share a file with them, are no longer
    part of the output. Later runs export them again and remove the old files. No run may be under
    way.

    Raises:
        OtherExportError: the manifest does not name all of these files.
    """
    starts = {
        item: _first_of_files(manifest, item, divergence_offset)
        for item, divergence_offset in divergence_offsets.items()
    }
    for partition, start in starts.items():
        if start < manifest.named_from.get(partition, 0):
            raise OtherExportError(
                f"{where}: no longer names the files with offset {divergence_offsets[partition]} "
                f"of partition {partition}: export the topic into another directory"
            )
    files = tuple(
        file for file in manifest.files if file.first < starts.get(file.partition, _NEVER)
    )
    # Files may have been written with earlier options, below directories that no option names now.
    directories = set(manifest.swept_directories) | {
        _directory_of(file.key, manifest.topic) for file in manifest.files if file not in files
    }
    if manifest.options is not None:
        directories |= manifest.options.directories
    # An earlier divergence may have lowered the next offset already, and the plan to replace its
    # files may have been withdrawn. Then the old files still reach up to `replacing`.
    ends = {
        item: max(manifest.next_offsets[item], manifest.replacing.get(item, 0)) for item in starts
    }
    changes: dict[str, object] = {
        "next_offsets": {**manifest.next_offsets, **starts},
        "files": files,
        "tail": without(manifest.tail, starts),
        "epochs": {**without(manifest.epochs, starts), **_shortened(manifest, starts)},
        "replacing": {**manifest.replacing, **ends},
        "unfinished": without(manifest.unfinished, starts),
        "schemas": without(manifest.schemas, starts),
        "sweeps": _SWEEPS,
        "swept_directories": tuple(sorted(directories)),
    }
    return manifest.model_copy(update=changes)


def _shortened(manifest: Manifest, starts: Mapping[int, int]) -> dict[int, Rows]:
    """Return the epochs below the new next offsets. They show another divergence before
    the commit.
    """
    before = {
        partition: position
        for partition, position in committed_positions(manifest).items()
        if partition in starts
    }
    kept = {
        partition: shortened(position, Offset(starts[partition]))
        for partition, position in before.items()
    }
    return {
        partition: rows_of(epoch_history)
        for partition, epoch_history in kept.items()
        if epoch_history.entries
    }


def _directory_of(key: str, topic: str) -> str:
    """Return the directory below which a file was written, maybe with other options than the last
    ones.

    If the key contains the topic's name twice, the longer directory is returned; no other export's
    files are below it.
    """
    return key.rpartition(f"/{topic}/")[0]


def _first_of_files(manifest: Manifest, partition: int, divergence_offset: Offset) -> int:
    """Return the lowest first offset of the files to drop for a divergence."""
    first: int = divergence_offset
    ours = (file for file in manifest.files if file.partition == partition)
    # Files of different encoded partitions overlap in offsets, so a file that is dropped can make
    # an earlier file overlap too.
    for file in sorted(ours, key=lambda file: file.first, reverse=True):
        if file.first < first <= file.last:
            first = file.first
    return first


def without(known: Mapping[int, _T], gone: Container[int]) -> dict[int, _T]:
    """Return the items of partitions that are not in `gone`."""
    return {partition: item for partition, item in known.items() if partition not in gone}


def check_settled(manifest: Manifest, options: FilesOptions, where: str) -> None:
    """Raise OtherExportError if changed options would mix two forms of output."""
    if manifest.options is None:
        return
    for name in _SETTLED:
        before, now = getattr(manifest.options, name), getattr(options, name)
        if before != now:
            raise OtherExportError(
                f"{where}: was written with {name.replace('_', ' ')} {_shown(before)}, now it is "
                f"{_shown(now)}: choose another directory, or continue with --accept-changes"
            )


def check_same_export(manifest: Manifest, cluster: str, asked: str | None, where: str) -> None:
    """Raise OtherExportError if the output belongs to another cluster or another range."""
    if manifest.cluster != cluster:
        raise OtherExportError(
            f"{where}: is an export of cluster {manifest.cluster}, not {cluster}"
        )
    if manifest.asked != asked:
        raise OtherExportError(
            f"{where}: is an export of {manifest.asked or 'all records'}, not of "
            f"{asked or 'all records'}: choose another directory"
        )


def _shown(value: object) -> str:
    return "none" if value in (None, ()) else str(value)
