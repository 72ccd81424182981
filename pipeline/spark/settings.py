"""Options of a read on Spark. Independent of Spark."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.config.archive_options import (
    DEFAULT_MAX_BATCH_BYTES,
    PREFIX,
    ArchiveOptions,
    Flag,
    WholeNumber,
    archive_of,
    parse_options,
)
from sidetier.config.storage import StorageConfig
from sidetier.config.units import Size
from sidetier.pipeline.planning.options import option_names, read_request
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.reading.split_reader import ReadOptions
from sidetier.pipeline.spark.columns import all_columns, chosen_columns, decoded_columns
from sidetier.segments.errors import ConfigurationError

_MAX_OPEN: Final = 4
"""Maximum archives that one process keeps open. Consecutive tasks mostly read the same one."""


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """Location of a cluster's archive.

    It contains references to secrets, which each process resolves: an environment variable, a file,
    or AWS's credential chain.
    """

    cluster: str
    storage: StorageConfig

    def key(self) -> str:
        """Return a text that is equal for equal locations."""
        return f"{self.cluster} {self.storage.model_dump_json()}"


@dataclass(slots=True)
class _Open:
    pid: int = field(default_factory=os.getpid)
    archives: dict[str, tuple[ArchiveAccess, ExitStack]] = field(default_factory=dict)


_open = _Open()


def opened(place: ArchivePlace) -> ArchiveAccess:
    """Return the archive. The first call in a process opens it; later calls return the same one.

    Connections do not survive a fork, so a child process opens its own.

    Raises:
        ConfigurationError: a secret cannot be read here, or a driver is missing.
    """
    global _open  # noqa: PLW0603 -- one for each process
    if _open.pid != os.getpid():
        _open = _Open()
    key = place.key()
    if key not in _open.archives:
        stack = ExitStack()
        access = stack.enter_context(open_archive(place.cluster, place.storage))
        _open.archives[key] = (access, stack)
        while len(_open.archives) > _MAX_OPEN:
            oldest = next(iter(_open.archives))
            _open.archives.pop(oldest)[1].close()
    return _open.archives[key][0]


def close_all() -> None:
    """Close all archives of this process; they can be opened again."""
    while _open.archives:
        _open.archives.popitem()[1][1].close()


COLUMNS: Final = "columns"
PUSH_FILTERS: Final = "pushFilters"
_OURS: Final = (COLUMNS, PUSH_FILTERS)


class TaskOptions(ArchiveOptions):
    """`tiered.storage.*` options of a read on Spark: location of the archive, and limits of one
    task.
    """

    memory_budget: Size = Field(
        default=ReadOptions().memory_budget,
        description="Bytes of stored segments that one task holds, fetched or on their way.",
    )
    batch_records: WholeNumber = Field(
        default=1 << 16, ge=1, description="Most records of one Arrow batch."
    )
    with_tail: Flag = Field(
        default=False,
        description="Also read the records of active segments that tail packs have. Planning lists "
        "the packs of each broker, and makes a request for each new one. A stream does so at most "
        "every 5 s.",
    )


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """One read: archive, request and columns. Sent to executors; contains no secret.

    Attributes:
        push_filters: whether the source accepts filters (`pushFilters`).
        raw_timestamps: whether timestamps are returned as numbers of milliseconds.
        with_tail: whether tail packs follow the archive.
    """

    place: ArchivePlace
    request: ReadRequest
    columns: tuple[str, ...]
    memory_budget: int
    batch_records: int
    push_filters: bool = False
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    raw_timestamps: bool = False
    with_tail: bool = False

    def reading(self) -> ReadOptions:
        """Return the options of one task."""
        return ReadOptions(
            columns=decoded_columns(self.columns),
            isolation=self.request.isolation,
            fail_on_data_loss=self.request.fail_on_data_loss,
            memory_budget=self.memory_budget,
            most_records=self.batch_records,
            max_batch_bytes=self.max_batch_bytes,
            with_tail=self.with_tail,
        )


def read_settings(options: Mapping[str, str], *, streaming: bool = False) -> ReadSettings:
    """Parse the options of a read; names are case-insensitive.

    Raises:
        ConfigurationError: an option is unknown, has a wrong value, or contradicts another. The
            text never contains a value of `tiered.storage.s3.*`.
    """
    store = {key.lower(): value for key, value in options.items() if _is_stores(key)}
    ours = {key.lower(): value for key, value in options.items() if _is_ours(key)}
    rest = {key: value for key, value in options.items() if not _is_stores(key)}
    request = read_request(
        {key: value for key, value in rest.items() if not _is_ours(key)}, streaming=streaming
    )
    parsed = parse_options(TaskOptions, store, option_names())
    cluster, storage = archive_of(parsed, store)
    return ReadSettings(
        place=ArchivePlace(cluster, storage),
        request=request,
        columns=_columns(ours.get(COLUMNS), headers=request.include_headers),
        memory_budget=parsed.memory_budget,
        batch_records=parsed.batch_records,
        max_batch_bytes=parsed.max_batch_bytes,
        with_tail=parsed.with_tail,
        push_filters=_flag(ours.get(PUSH_FILTERS.lower(), "false")),
    )


def _columns(named: str | None, *, headers: bool) -> tuple[str, ...]:
    if named is None:
        return all_columns(headers=headers)
    return chosen_columns(named, headers=headers)


def _flag(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ConfigurationError(f"{PUSH_FILTERS} {value!r}: must be true or false")
    return value.lower() == "true"


def _is_stores(key: str) -> bool:
    return key.lower().startswith(PREFIX)


def _is_ours(key: str) -> bool:
    return key.lower() in {name.lower() for name in _OURS}
