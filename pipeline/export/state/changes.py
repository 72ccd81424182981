"""How a manifest changes. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from sidetier.pipeline.export.errors import OtherExportError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.state.manifest import (
    MOST_FILES,
    FileEntry,
    Manifest,
    MissingEntry,
    Run,
    Span,
)

_SWEEPS: Final = 2
"""A writer that was thought dead may still write while the next run is under way."""
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


def begun(
    manifest: Manifest, spans: Mapping[int, Span], options: FilesOptions, nonce: str
) -> Manifest:
    """A run is under way."""
    run = Run(generation=manifest.generation + 1, nonce=nonce, spans=dict(spans), options=options)
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
) -> Manifest:
    """The files of the run are the export's."""
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
        "sweeps": sweeps,
        "swept_directories": manifest.swept_directories if sweeps else (),
        "nonce": nonce,
    }
    return manifest.model_copy(update={**changes, **_named(manifest, run, new, ends)})


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


def withdrawn(manifest: Manifest, nonce: str) -> Manifest:
    """The run is given up: what it has written is to be looked for."""
    places = set(manifest.swept_directories)
    if manifest.pending is not None:
        places |= manifest.pending.directories
    changes = {"pending": None, "sweeps": _SWEEPS, "swept_directories": tuple(sorted(places))}
    return manifest.model_copy(update={**changes, "nonce": nonce})


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
