"""What a manifest says: the next offset of each Kafka partition, and what is under way."""

import json
from typing import Final, Literal

from pydantic import Field, ValidationError

from sidetier.config.base import Part
from sidetier.pipeline.export.epoch_history import Rows
from sidetier.pipeline.export.errors import refuse_later
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.segments.errors import MalformedObjectError

VERSION: Final = 1
MOST_FILES: Final = 10_000
"""Files that a manifest names; those of the newest runs."""


class Span(Part):
    """The offsets of a Kafka partition from `first` up to, not including, `until`."""

    first: int = Field(ge=0)
    until: int = Field(ge=0)


class FileEntry(Part):
    """A file that is whole: its key, and the records in it; offsets may be missing in between."""

    key: str
    partition: int
    first: int
    last: int
    records: int
    bytes: int


class SchemaIds(Part):
    """The schemas that the last rows of a Kafka partition have, by their ids in the registry."""

    value: int | None = None
    key: int | None = None


NO_SCHEMAS: Final = SchemaIds()


class MissingEntry(Part):
    """Offsets that were exported over, since they are not stored."""

    partition: int
    first: int
    until: int
    detail: str


class Run(Part):
    """A plan whose files are being written: what they are called and hold follows from it alone."""

    generation: int = Field(ge=1)
    nonce: str
    spans: dict[int, Span]
    options: FilesOptions
    tail: dict[int, int] = Field(default_factory=dict)
    """Where the spans end that go on behind the archive, by Kafka partition."""
    topic_id: str | None = None
    """What the brokers gave, where they were asked."""
    epochs: dict[int, Rows] = Field(default_factory=dict)
    """Which leader epochs have written what lies below the spans' ends, by Kafka partition."""

    @property
    def id(self) -> str:
        """Kept with each file of the run."""
        return f"{self.generation}-{self.nonce}"

    @property
    def directories(self) -> frozenset[str]:
        """Below which its files lie."""
        return self.options.directories


class Manifest(Part):
    """The whole state of an export of one topic.

    Attributes:
        asked: what was asked for, where that is a given range; None for an export that goes on
            from where it stands.
        generation: of the last run that was begun; each has a higher one.
        next_offsets: by Kafka partition, what the next run begins with.
        pending: the run that was begun and is not known to have ended.
        files: those of the newest runs, in no order; whole, and never written again.
        named_from: by Kafka partition, the offset from which on `files` has all files.
        sweeps: runs that are to look for files of runs that were given up.
        swept_directories: where those files lie.
        missing: offsets of the newest run that were exported over.
        tail: by Kafka partition, up to where records were last read from the brokers; the archive
            may end below.
        topic_id: of the topic that they were read of.
        epochs: by Kafka partition, the newest leader epochs below its next offset, and where each
            begins; none where nobody knows.
        replacing: by Kafka partition, up to where files lie, named no more, that hold what brokers
            have thrown away; one run replaces them all.
        unfinished: with `whole_files`, by Kafka partition up to where records were read that do not
            fill a file yet: it is read again once there are more.
        schemas: by Kafka partition, what schema changes are told by; none where all rows have the
            schema of the options.
        nonce: another one with each write: a conditional write needs other bytes.
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
    """As it is stored."""
    return manifest.model_dump_json(indent=1).encode() + b"\n"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read what is stored.

    Raises:
        NewerStateError: a later version of Sidetier has written it.
        MalformedObjectError: it is not what any version writes.
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
