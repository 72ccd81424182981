"""The progress of an export to a table, read from the table's own files: without Spark or Java.

`sidetier gc` asks for it. Both formats store the properties of `commit_metadata` with each commit.

Hudi: a completed commit is a file of the timeline, with the properties as `extraMetadata`. Table
version 8 and later: Avro, `.hoodie/timeline/<requested>_<completed>.<action>`. Earlier versions:
JSON, `.hoodie/<requested>.<action>`.

Iceberg: a metadata file has the snapshots of the table, and names the current one. A catalog of the
type hadoop numbers its files, and the one with the highest number is current. Every other catalog
keeps the name of the current file to itself. Its files begin with a number that each commit
increases by one. A commit that was refused, or whose writer was killed, can leave a file with the
next number. So the current file has the highest number or the one before it. The lowest offsets in
all of these files are at or below the current one's.

A table that was dropped without its files leaves metadata files with higher numbers than the files
of a table that is then created in the same location. They are older, so the newest file decides.
"""

import gzip
import io
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, Final

import fastavro

from sidetier.config.properties_file import parse_properties
from sidetier.pipeline.export.errors import LostProgressError, NewerStateError
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    STATE_TAG,
    Changes,
    Progress,
    from_properties,
    last_progress,
)
from sidetier.pipeline.export.state import Exported, Tail
from sidetier.segments.errors import MalformedObjectError, ObjectNotFoundError
from sidetier.segments.json_text import parse_json
from sidetier.storage.port import RemoteStorage

_HUDI_PROPERTIES: Final = ".hoodie/hoodie.properties"
_FIRST_WITH_TIMELINE_FOLDER: Final = 8
_NEWEST_HUDI: Final = 9
_NEWEST_ICEBERG: Final = 3
_INSTANT: Final = re.compile(r"(\d+)(?:_\d+)?\.(commit|deltacommit)")
"""File of a completed commit. Other actions, such as clustering, never have the properties."""
_METADATA: Final = "metadata/"
_METADATA_FILE: Final = re.compile(r"(v?)(\d+)(?:-[^/]+?)?(?:\.gz)?\.metadata\.json(?:\.gz)?")


def hudi_progress(store: RemoteStorage, cluster: str) -> Exported:
    """Return the next offset of each partition that was exported to a Hudi table, and topic ids.

    Args:
        store: a store whose root is the table's base path.
        cluster: name of the cluster that must have been exported.

    Raises:
        LostProgressError: The offsets are unknown; the text gives the reason.
        BrokenProgressError: the last commits do not follow each other.
        MalformedObjectError, StorageError: a file cannot be read.
    """
    try:
        text = store.get_object(_HUDI_PROPERTIES).data.decode()
    except ObjectNotFoundError:
        raise LostProgressError(f"there is no Hudi table: {_HUDI_PROPERTIES} is missing") from None
    properties = {each.key: each.value for each in parse_properties(text, _HUDI_PROPERTIES)}
    version = properties.get("hoodie.table.version", "")
    if not version.isdecimal():
        raise MalformedObjectError(f"{_HUDI_PROPERTIES}: hoodie.table.version is {version!r}")
    if int(version) > _NEWEST_HUDI:
        raise NewerStateError(
            f"{_HUDI_PROPERTIES}: hoodie.table.version is {version}, and this version of Sidetier "
            f"knows tables up to {_NEWEST_HUDI}"
        )
    if int(version) >= _FIRST_WITH_TIMELINE_FOLDER:
        folder = f".hoodie/{properties.get('hoodie.timeline.path', 'timeline')}/"
        prefix = folder
    else:
        # Instants begin with the year; `.hoodie/metadata/` has many other objects.
        folder, prefix = ".hoodie/", ".hoodie/2"
    instants = sorted(
        (int(match[1]), row.key)
        for row in store.list_objects(prefix)
        if (match := _INSTANT.fullmatch(row.key.removeprefix(folder)))
    )

    def newest_first() -> Iterator[Progress | Changes | None]:
        for _, key in reversed(instants):
            yield from_properties(_extra_metadata(store.get_object(key).data, key), key)

    return _checked(
        last_progress(newest_first()), cluster, f"none of the {len(instants)} commits in {folder}"
    )


def _extra_metadata(data: bytes, key: str) -> Mapping[str, str]:
    try:
        commit: Any = (
            parse_json(data)
            if data.startswith(b"{")
            else next(iter(fastavro.reader(io.BytesIO(data))))
        )
        extra = commit["extraMetadata"] or {}
        return {str(name): str(value) for name, value in extra.items()}
    # fastavro raises errors of many types for damaged bytes.
    except Exception as error:
        raise MalformedObjectError(f"{key}: not the metadata of a commit: {error!r}") from error


def iceberg_progress(store: RemoteStorage, cluster: str) -> Exported:
    """Return the next offset of each partition of a table whose location is the store's root, or a
    lower one: see the module. Topic ids are those in which the files that were read agree.

    Raises:
        As `hudi_progress`.
    """

    def of_file(key: str) -> Exported:
        progress = _last_progress(_table_metadata(store, key), key)
        return _checked(progress, cluster, f"none of the snapshots in {key}")

    return reduce(_lower, map(of_file, _metadata_files(store)))


def _lower(one: Exported, other: Exported) -> Exported:
    """Return the lower offset of each partition that both have, and the topic ids of both.

    Raises:
        LostProgressError: a topic has two ids.
    """
    offsets = {
        tp: min(one.next_offsets[tp], other.next_offsets[tp])
        for tp in one.next_offsets.keys() & other.next_offsets.keys()
    }
    ids, other_ids = one.tail.topic_ids, other.tail.topic_ids
    for topic in ids.keys() & other_ids.keys():
        if ids[topic] != other_ids[topic]:
            raise LostProgressError(
                f"its newest metadata files have two ids of topic {topic}, {ids[topic]} and "
                f"{other_ids[topic]}, so it is unknown which of the two topics it has"
            )
    return Exported(offsets, Tail(topic_ids=dict(ids.items() & other_ids.items())))


def _metadata_files(store: RemoteStorage) -> list[str]:
    """Return the keys of the metadata files of which one is current, highest number first; never
    empty.
    """
    files: dict[str, list[tuple[int, str]]] = {}
    modified_ms: dict[str, int] = {}
    for row in store.list_objects(_METADATA):
        name = row.key.removeprefix(_METADATA)
        match = _METADATA_FILE.fullmatch(name)
        if match is not None:
            files.setdefault(match[1], []).append((int(match[2]), row.key))
            modified_ms[row.key] = row.modified_ms
        elif name.endswith((".metadata.json", ".metadata.json.gz")):
            raise LostProgressError(
                f"the name of {row.key} has no number, so it is unknown which metadata file is the "
                "newest"
            )
    if not files:
        raise LostProgressError(f"there is no Iceberg table: {_METADATA} has no metadata file")
    if len(files) > 1:
        raise LostProgressError(
            f"{_METADATA} has files of two catalogs, v<number>.metadata.json and "
            "<number>-<id>.metadata.json, so it is unknown which of them is the newest"
        )
    [(kind, numbered)] = files.items()
    highest = max(number for number, _ in numbered)
    lowest = highest if kind else highest - 1
    candidates = [key for number, key in sorted(numbered, reverse=True) if number >= lowest]
    newest = max(modified_ms, key=modified_ms.__getitem__)
    # Stores have times in full seconds, so several files may be the newest.
    if max(modified_ms[key] for key in candidates) < modified_ms[newest]:
        raise LostProgressError(
            f"{newest} is newer than {candidates[0]}, which has a higher number: the table was "
            "created again in the location of a dropped one, or its catalog was pointed to an "
            "older file, so it is unknown which of them is current"
        )
    return candidates


def _table_metadata(store: RemoteStorage, key: str) -> Mapping[str, Any]:
    data = store.get_object(key).data
    try:
        text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        metadata = parse_json(text)
    except (ValueError, OSError, EOFError) as error:
        raise MalformedObjectError(f"{key}: not the metadata of a table: {error}") from error
    if not isinstance(metadata, dict):
        raise MalformedObjectError(f"{key}: not the metadata of a table")
    return metadata


def _last_progress(metadata: Mapping[str, Any], key: str) -> Progress | None:
    try:
        version = metadata.get("format-version", 1)
        if version > _NEWEST_ICEBERG:
            raise NewerStateError(
                f"{key}: format-version is {version}, and this version of Sidetier knows tables up "
                f"to {_NEWEST_ICEBERG}"
            )
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
        tag = metadata.get("refs", {}).get(STATE_TAG)
        kept = None if tag is None else snapshots.get(tag["snapshot-id"])

        def progress_of(snapshot: Mapping[str, Any]) -> Progress | Changes | None:
            where = f"{key}: the snapshot {snapshot['snapshot-id']}"
            return from_properties(snapshot.get("summary", {}), where)

        def newest_first() -> Iterator[Progress | Changes | None]:
            snapshot = snapshots.get(metadata.get("current-snapshot-id"))
            while snapshot is not None:
                yield progress_of(snapshot)
                snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))

        def tagged(commit: str) -> Progress | None:
            state = None if kept is None else progress_of(kept)
            return state if isinstance(state, Progress) and state.commit == commit else None

        return last_progress(newest_first(), tagged)
    except (KeyError, TypeError, AttributeError) as error:
        raise MalformedObjectError(f"{key}: not the metadata of a table: {error!r}") from error


def _checked(progress: Progress | None, cluster: str, nothing: str) -> Exported:
    if progress is None:
        raise LostProgressError(f"{nothing} is of an export of Sidetier")
    if progress.cluster != cluster:
        raise LostProgressError(f"it has records of cluster {progress.cluster}, not of {cluster}")
    return progress.exported
