"""The manifest of an export: the next offset of each Kafka partition, and the run under way."""

import json
from typing import Final, Literal

from pydantic import Field, ValidationError

from sidetier.config.types import Part
from sidetier.pipeline.export.epoch_history import Rows
from sidetier.pipeline.export.errors import refuse_later
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.segments.errors import MalformedObjectError

VERSION: Final = 1
MOST_FILES: Final = 10_000
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
            partition. The manifest does not name these files any more. One run replaces all of
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
        version = json.loads(data)["version"]
        if isinstance(version, int):
            refuse_later(version, VERSION, "a manifest", where)
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise MalformedObjectError(f"{where}: {place}: {first['msg']}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedObjectError(f"{where}: is no manifest: {error}") from None
