"""Options of an export to Hudi: those of Hudi's Kafka Connect sink that apply here.

Options that begin with `hoodie.` are passed to Hudi, except those that would break the export's
guarantees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sidetier.pipeline.export.tables.progress import PREFIX
from sidetier.pipeline.export.tables.run import DEFAULT_TIMEOUT
from sidetier.segments.errors import ConfigurationError

BASE_PATH: Final = "target.base.path"
TABLE_NAME: Final = "target.table.name"
INTERVAL: Final = "transaction.interval.ms"
TIMEOUT: Final = "coordinator.writestatus.timeout"
ALLOW_EMPTY: Final = "hoodie.allow.empty.commit"
OPERATION: Final = "hoodie.datasource.write.operation"
TABLE_TYPE: Final = "hoodie.datasource.write.table.type"
RECORD_KEY: Final = "hoodie.datasource.write.recordkey.field"
PRECOMBINE: Final = "hoodie.datasource.write.precombine.field"
PARTITION_PATH: Final = "hoodie.datasource.write.partitionpath.field"
NULL_FOR_MISSING: Final = "hoodie.write.set.null.for.missing.columns"

KEPT_COMMITS: Final = "hoodie.keep.min.commits"
"""Name of the option for the smallest number of commits that stay in the active timeline."""

DEFAULT_INTERVAL: Final = 60.0
_DEFAULT_KEPT: Final = 20
_WHOLE_STATE_EVERY: Final = 10
_OPERATIONS: Final = ("insert", "bulk_insert", "upsert")
_TABLE_TYPES: Final = ("COPY_ON_WRITE", "MERGE_ON_READ")
_MEANINGLESS: Final = {
    "bootstrap.servers": "no broker is asked",
    "hoodie.kafka.control.topic": "there is no control topic: Spark's driver coordinates",
    "hoodie.kafka.allow.commit.on.errors": "a commit never leaves out a record that it spans",
}
_FIXED: Final = {
    "hoodie.datasource.write.commitmeta.key.prefix": PREFIX,
    "hoodie.write.concurrency.mode": "SINGLE_WRITER",
    "hoodie.clean.failed.writes.policy": "EAGER",
}
"""Options that the export sets itself: commits contain the offsets, and each new writer rolls back
failed writes.
"""
_OLD_NAMES: Final = {
    "hoodie.cleaner.policy.failed.writes": "hoodie.clean.failed.writes.policy",
}
_SECONDS: Final = {
    INTERVAL: 0.001,
    "hoodie.kafka.commit.interval.secs": 1.0,
    TIMEOUT: 1.0,
    "hoodie.kafka.coordinator.write.timeout.secs": 1.0,
}


@dataclass(frozen=True, slots=True)
class HudiOptions:
    """One table, and how it is written.

    Attributes:
        base_path: path of the table for Spark's file systems.
        table: name of the table.
        interval: seconds from the start of one run to the next, of a continuous export.
        timeout: time limit of one commit, in seconds.
        allow_empty: whether to commit offsets without records.
        write: options for Hudi.
    """

    base_path: str
    table: str
    interval: float = DEFAULT_INTERVAL
    timeout: float = DEFAULT_TIMEOUT
    allow_empty: bool = True
    write: Mapping[str, str] = field(default_factory=dict)


def parse_options(given: Mapping[str, str]) -> HudiOptions:
    """Parse the options.

    Raises:
        ConfigurationError: an option is missing, unknown or invalid. The message names it.
    """
    _refuse(given)
    write = _write_options(given)
    return HudiOptions(
        base_path=_required(given, BASE_PATH).rstrip("/"),
        table=_required(given, TABLE_NAME),
        interval=_seconds(given, (INTERVAL, "hoodie.kafka.commit.interval.secs"), DEFAULT_INTERVAL),
        timeout=_seconds(
            given, (TIMEOUT, "hoodie.kafka.coordinator.write.timeout.secs"), DEFAULT_TIMEOUT
        ),
        allow_empty=_true_or_false(given, ALLOW_EMPTY),
        write=write,
    )


def with_schema_changes(options: HudiOptions) -> HudiOptions:
    """Let the table follow the schemas of rows.

    Hudi adds new columns and members of structs, and writes null to those that rows do not have any
    more. Without this option it refuses both. An option that the user has set takes precedence.
    """
    return replace(options, write={NULL_FOR_MISSING: "true", **options.write})


def _refuse(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name in _MEANINGLESS:
            raise ConfigurationError(f"{name} means nothing here: {_MEANINGLESS[name]}")
        fixed = _FIXED.get(_OLD_NAMES.get(name, name))
        if fixed is not None and value.upper() != fixed.upper():
            raise ConfigurationError(f"{name} {value}: an export needs {fixed}, and sets it")
        if name not in {BASE_PATH, TABLE_NAME, *_SECONDS} and not name.startswith("hoodie."):
            raise ConfigurationError(
                f"{name} is no option of an export into Hudi; those that are not hoodie.* are "
                f"{BASE_PATH}, {TABLE_NAME}, {INTERVAL} and {TIMEOUT}"
            )


def whole_state_every(options: HudiOptions, given: int | None) -> int:
    """Return the number of commits of which one has the whole state.

    That commit must stay in the active timeline as long as others refer to it, with room for an
    equal number of compaction commits.

    Args:
        options: the options of the table.
        given: the number that the user has set; None for the default.

    Raises:
        ConfigurationError: the number is too large for the active timeline.
    """
    kept = options.write.get(KEPT_COMMITS, str(_DEFAULT_KEPT))
    if not kept.isdecimal():
        raise ConfigurationError(f"{KEPT_COMMITS} {kept!r}: must be a number")
    most = max(int(kept) // 2, 1)
    if given is not None and given > most:
        raise ConfigurationError(
            f"--whole-state-every {given}: may be {most} at most, half of {KEPT_COMMITS}: Hudi "
            "archives older commits, and the offsets would be lost"
        )
    return given or min(_WHOLE_STATE_EVERY, most)


def _write_options(given: Mapping[str, str]) -> dict[str, str]:
    ours = {*_SECONDS, *_OLD_NAMES}
    write = {
        OPERATION: "insert",
        TABLE_TYPE: "COPY_ON_WRITE",
        RECORD_KEY: "topic,partition,offset",
        PRECOMBINE: "offset",
        ALLOW_EMPTY: "true",
    }
    write |= {
        name: value
        for name, value in given.items()
        if name.startswith("hoodie.") and name not in ours
    }
    _one_of(write, OPERATION, _OPERATIONS, str.lower)
    _one_of(write, TABLE_TYPE, _TABLE_TYPES, str.upper)
    if write[TABLE_TYPE] == "MERGE_ON_READ":
        write.setdefault("hoodie.compact.inline", "true")
    return write | {"hoodie.table.name": _required(given, TABLE_NAME)} | _FIXED


def _one_of(
    options: dict[str, str], name: str, known: tuple[str, ...], form: Callable[[str], str]
) -> None:
    options[name] = form(options[name])
    if options[name] not in known:
        raise ConfigurationError(f"{name} {options[name]}: must be one of {', '.join(known)}")


def _required(given: Mapping[str, str], name: str) -> str:
    value = given.get(name, "").strip()
    if not value:
        raise ConfigurationError(f"{name} is missing: an export into Hudi needs it")
    return value


def _seconds(given: Mapping[str, str], names: tuple[str, ...], default: float) -> float:
    for name in names:
        if name not in given:
            continue
        try:
            seconds = float(given[name]) * _SECONDS[name]
        except ValueError:
            raise ConfigurationError(f"{name} {given[name]!r}: must be a number") from None
        if not seconds > 0:
            raise ConfigurationError(f"{name} {given[name]}: must be above 0")
        return seconds
    return default


def _true_or_false(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "true").lower()
    if value not in {"true", "false"}:
        raise ConfigurationError(f"{name} {given[name]!r}: must be true or false")
    return value == "true"
