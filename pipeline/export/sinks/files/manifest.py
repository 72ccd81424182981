"""The manifest: the state of an export to files, one object that is replaced with conditional puts.

It has the next offset of each Kafka partition, and the plan that is being carried out. A job
replaces only the version that it has read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal
from uuid import uuid4

from pydantic import Field, ValidationError

from sidetier.config.types import Part
from sidetier.pipeline.export.epoch_history import Rows, epoch_history_of
from sidetier.pipeline.export.errors import OtherWriterError, refuse_later
from sidetier.pipeline.export.sinks.files.names import STATE_DIRECTORY, topic_prefix
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.state import Exported, Tail
from sidetier.segments.errors import (
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Condition, IfAbsent, IfMatch, PutOptions, RemoteStorage

VERSION: Final = 1
MAX_FILES: Final = 10_000
"""Most files that a manifest names. Those of the newest runs are kept."""


class Span(Part):
    """A range of offsets of one Kafka partition: `first` inclusive, `until` exclusive."""

    first: int = Field(ge=0)
    until: int = Field(ge=0)


class FileEntry(Part):
    """A complete file: its key, and the records in it. Offsets between `first` and `last` may be
    absent.

    Attributes:
        first: offset of the first record.
        last: offset of the last record, inclusive.
    """

    key: str
    partition: int
    first: int
    last: int
    records: int
    bytes: int


class SchemaIds(Part):
    """Registry ids of the schemas that the last rows of a Kafka partition have."""

    value: int | None = None
    key: int | None = None


NO_SCHEMAS: Final = SchemaIds()


class MissingEntry(Part):
    """Offsets that the export skipped because they are not stored: `first` inclusive, `until`
    exclusive.
    """

    partition: int
    first: int
    until: int
    detail: str


class Run(Part):
    """A plan whose files are being written. It alone determines the names and contents of the
    files.
    """

    generation: int = Field(ge=1)
    nonce: str
    spans: dict[int, Span]
    options: FilesOptions
    tail: dict[int, int] = Field(default_factory=dict)
    """Ends of the spans that go beyond the archive, by Kafka partition."""
    topic_id: str | None = None
    """The topic id that the brokers gave, if they were asked."""
    epochs: dict[int, Rows] = Field(default_factory=dict)
    """Leader epochs of the records below the spans' ends, by Kafka partition."""

    @property
    def id(self) -> str:
        """Id of the run: its generation and nonce. Each file of the run has it in its metadata."""
        return f"{self.generation}-{self.nonce}"

    @property
    def directories(self) -> frozenset[str]:
        """Directories below which the run writes its files."""
        return self.options.directories


class Manifest(Part):
    """The whole state of an export of one topic.

    Attributes:
        asked: the requested range, in words; None for an export that continues from its next
            offsets.
        generation: number of the last run that was begun. It rises with each run.
        next_offsets: the first offset of the next run, by Kafka partition.
        pending: the run that was begun and is not known to have ended.
        files: files of the newest runs, in no order. They are complete and are never written again.
        named_from: the offset from which on `files` names all files, by Kafka partition.
        sweeps: number of runs that still have to look for files of withdrawn runs.
        swept_directories: directories in which those files are.
        missing: ranges that the newest run skipped because they are not stored.
        tail: the offset up to which records were last read from the brokers, by Kafka partition.
            The archive may end below it.
        topic_id: id of the topic that the records were read from.
        epochs: the newest leader epochs below the next offset, each with its start offset, by Kafka
            partition. Partitions without known epochs are left out.
        replacing: the offset up to which the old files go that hold discarded records, by Kafka
            partition. The manifest no longer names these files. One run replaces all of
            them.
        unfinished: with `whole_files`, the offset up to which records were read that do not fill a
            file yet, by Kafka partition. They are read again once there are more.
        schemas: schema ids of the last rows, from which schema changes are detected, by Kafka
            partition. A partition is left out if all its rows have the schema of the options.
        nonce: a new one for each write, so that no two writes have the same bytes: a job recognizes
            its own write, and a version that is derived from the content changes.
    """

    version: Literal[1] = VERSION
    cluster: str
    topic: str
    asked: str | None = None
    generation: int = 0
    next_offsets: dict[int, int] = Field(default_factory=dict)
    pending: Run | None = None
    options: FilesOptions | None = None
    files: tuple[FileEntry, ...] = ()
    named_from: dict[int, int] = Field(default_factory=dict)
    sweeps: int = 0
    swept_directories: tuple[str, ...] = ()
    missing: tuple[MissingEntry, ...] = ()
    tail: dict[int, int] = Field(default_factory=dict)
    topic_id: str | None = None
    epochs: dict[int, Rows] = Field(default_factory=dict)
    replacing: dict[int, int] = Field(default_factory=dict)
    unfinished: dict[int, int] = Field(default_factory=dict)
    schemas: dict[int, SchemaIds] = Field(default_factory=dict)
    nonce: str

    @property
    def exported(self) -> Exported:
        """The state of the export after its last commit."""
        tail = Tail(
            offsets_of(self.topic, self.tail),
            {} if self.topic_id is None else {self.topic: self.topic_id},
            {
                TopicPartition(self.topic, partition): epoch_history_of(rows)
                for partition, rows in self.epochs.items()
            },
        )
        return Exported(offsets_of(self.topic, self.next_offsets), tail)


def offsets_of(topic: str, by_partition: Mapping[int, int]) -> dict[TopicPartition, Offset]:
    """Return offsets of a topic by topic partition."""
    return {TopicPartition(topic, item): Offset(offset) for item, offset in by_partition.items()}


def ranges_of(topic: str, spans: Mapping[int, Span]) -> dict[TopicPartition, OffsetRange]:
    """Return spans of a topic as offset ranges by topic partition."""
    return {
        TopicPartition(topic, partition): OffsetRange(Offset(span.first), Offset(span.until))
        for partition, span in spans.items()
    }


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes that are stored: indented JSON."""
    return manifest.model_dump_json(indent=1).encode() + b"\n"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse a stored manifest.

    Args:
        data: the bytes of the object.
        where: the manifest's place, for errors.

    Raises:
        NewerStateError: a later version of Sidetier has written it.
        MalformedObjectError: it is not a manifest of any known version.
    """
    try:
        version = parse_json(data)["version"]
        if isinstance(version, int):
            refuse_later(version, VERSION, "a manifest", where)
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise MalformedObjectError(f"{where}: {place}: {first['msg']}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedObjectError(f"{where}: is not a manifest: {error}") from None


MANIFEST_NAME: Final = "manifest.json"


def manifest_key(topics_dir: str, topic: str) -> str:
    """Return the key of the manifest of a topic's export."""
    return f"{topic_prefix(topics_dir, topic)}{STATE_DIRECTORY}/{MANIFEST_NAME}"


def new_nonce() -> str:
    """Return a new random nonce."""
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest as it was read or written, and its object's ETag; None if there is no object."""

    manifest: Manifest
    etag: str | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """Reader and writer of one manifest.

    Each write is atomic: a kill leaves the manifest as it was before the write or after it.
    """

    store: RemoteStorage
    key: str
    url: str
    """URL of the store, for errors."""
    nonce: Callable[[], str] = new_nonce

    @property
    def where(self) -> str:
        """URL of the manifest, for errors."""
        return f"{self.url}/{self.key}"

    def load(self, cluster: str, topic: str, asked: str | None) -> StoredManifest:
        """Read the manifest; return an empty one for this export if none is stored.

        Raises:
            NewerStateError, MalformedObjectError: see `decode_manifest`.
            StorageError: see `RemoteStorage.get_object`.
        """
        try:
            stored = self.store.get_object(self.key)
        except ObjectNotFoundError:
            empty = Manifest(cluster=cluster, topic=topic, asked=asked, nonce=self.nonce())
            return StoredManifest(empty, None)
        return StoredManifest(decode_manifest(stored.data, self.where), stored.head.etag)

    def replace(self, held: StoredManifest, manifest: Manifest) -> StoredManifest:
        """Write `manifest` with a condition: the stored object is still the one in `held`.

        Raises:
            OtherWriterError: another job has changed the manifest.
            StorageError: see `RemoteStorage.put_object`. The write may have succeeded.
        """
        # The condition is the only lock between jobs: without it, two jobs could commit two plans.
        condition: Condition = IfAbsent() if held.etag is None else IfMatch(held.etag)
        try:
            etag = self.store.put_object(
                self.key, BytesBody(encode_manifest(manifest)), PutOptions(condition=condition)
            )
        except PreconditionFailedError:
            # An earlier attempt may have succeeded although its answer was lost: compare nonces.
            now = self.load(manifest.cluster, manifest.topic, manifest.asked)
            if now.etag is not None and now.manifest.nonce == manifest.nonce:
                return now
            raise OtherWriterError(
                f"{self.where}: another export has written its state since this one began; "
                "nothing of this run is part of the output: run it again once the other has ended"
            ) from None
        return StoredManifest(manifest, etag)
