"""A Hudi table of an export, and its options: the ones of Hudi's Kafka Connect sink that apply.

Options that begin with `hoodie.` are passed to Hudi, except those that would break the export's
guarantees.

Hudi's data source makes the whole commit. It rolls back what an earlier writer has left, writes
files that no reader takes as valid, and completes the commit with one new file in the timeline.
After a kill before that file, the next run undoes the write. After a kill behind it, the commit
exists.

Nothing in Hudi keeps two writers of one table, each with its own files, from committing the same
records. So the export holds a lease from before it reads the offsets until after the commit. A
writer that has lost the lease stops. If it comes back after the next writer has begun, that one has
rolled back its pending commit, which it then cannot complete.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import DataFrame, SparkSession

from sidetier.pipeline.export.errors import CommitTimedOutError, LostProgressError, OtherWriterError
from sidetier.pipeline.export.sinks.tables.cancelling import cancel_jobs_after
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    COMMIT_KEY,
    PREFIX,
    Changes,
    Progress,
    from_properties,
    is_at,
    last_progress,
    to_properties,
)
from sidetier.pipeline.export.sinks.tables.gateway import (
    SPARK_ERRORS,
    java_context,
    jvm,
    not_committed,
    refused_rows,
    require_class,
)
from sidetier.pipeline.export.sinks.tables.lease import Lease
from sidetier.pipeline.export.sinks.tables.row_checks import RowCheck, hudi_checks
from sidetier.pipeline.export.sinks.tables.row_counts import require_rows
from sidetier.pipeline.export.sinks.tables.row_types import (
    UnfitRowsError,
    converted,
    matching_of,
    require_avro_names,
)
from sidetier.pipeline.export.sinks.tables.run import DEFAULT_TIMEOUT
from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar
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
NULL_FOR_MISSING: Final = "hoodie.write.set.null.for.missing.columns"

KEPT_COMMITS: Final = "hoodie.keep.min.commits"
"""Name of the option for the smallest number of commits that stay in the active timeline."""

DEFAULT_INTERVAL: Final = 60.0
# Hudi's own default of `KEPT_COMMITS`.
_DEFAULT_KEPT: Final = 20
_WHOLE_STATE_EVERY: Final = 10
_KEEPS_EACH_ROW: Final = {
    "hoodie.combine.before.insert": "false",
    "hoodie.datasource.write.insert.drop.duplicates": "false",
    "hoodie.datasource.insert.dup.policy": "none",
    "hoodie.merge.allow.duplicate.on.inserts": "true",
}
"""Values with which an insert keeps all rows of one key. They are Hudi's defaults."""
_MERGERS: Final = (
    "hoodie.datasource.write.payload.class",
    "hoodie.write.record.merge.mode",
    "hoodie.write.record.merge.custom.implementation.classes",
)
"""Options that name code which may leave rows out."""
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
            raise ConfigurationError(f"{name} has no effect here: {_MEANINGLESS[name]}")
        fixed = _FIXED.get(_OLD_NAMES.get(name, name))
        if fixed is not None and value.upper() != fixed.upper():
            raise ConfigurationError(f"{name} {value}: an export needs {fixed}, and sets it")
        if name not in {BASE_PATH, TABLE_NAME, *_SECONDS} and not name.startswith("hoodie."):
            raise ConfigurationError(
                f"{name} is not an option of an export into Hudi; besides hoodie.*, these are: "
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
    # The export itself leaves out commits without records. Hudi must not refuse the one that stores
    # where a new export starts.
    write[ALLOW_EMPTY] = "true"
    return write | {"hoodie.table.name": _required(given, TABLE_NAME)} | _FIXED


def merges_rows(write: Mapping[str, str]) -> bool:
    """Return whether a commit may have fewer rows than it was given."""
    if any(name in write for name in _MERGERS):
        return True
    key = {name.strip() for name in write.get(RECORD_KEY, "").split(",")}
    if {"topic", "partition", "offset"} <= key:
        return False  # no key repeats
    keeps = all(write.get(name, kept).lower() == kept for name, kept in _KEEPS_EACH_ROW.items())
    return write[OPERATION] == "upsert" or not keeps


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


CONNECT_KEY: Final = "kafka.commit.offsets"
"""Property in which Hudi's own Kafka Connect sink stores a topic's offsets: `0=12,1=7`."""


class Timeline:
    """The timeline of one table. Each call reads it again."""

    def __init__(self, spark: SparkSession, base_path: str) -> None:
        self._spark = spark
        self._base_path = base_path

    def exists(self) -> bool:
        """Return whether the table exists."""
        path = jvm(self._spark).org.apache.hadoop.fs.Path(
            f"{self._base_path}/.hoodie/hoodie.properties"
        )
        conf = java_context(self._spark).hadoopConfiguration()
        return bool(path.getFileSystem(conf).exists(path))

    def meta_client(self) -> Any:  # noqa: ANN401 - a class of Hudi
        """Return Hudi's meta client of the table, which must exist."""
        java = jvm(self._spark)
        conf = java.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(
            java_context(self._spark).hadoopConfiguration()
        )
        builder = java.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
        return builder.setConf(conf).setBasePath(self._base_path).build()

    def properties(self) -> dict[str, str]:
        """Return the properties of the table; none if it does not exist."""
        if not self.exists():
            return {}
        properties = self.meta_client().getTableConfig().getProps()
        return {str(name): str(properties.get(name)) for name in properties.keySet().toArray()}

    def has_pending(self) -> bool:
        """Return whether a commit has begun and not ended."""
        commits = self.meta_client().getActiveTimeline().getCommitsTimeline()
        return not commits.filterInflightsAndRequested().empty()

    def progress(self) -> Progress | None:
        """Return the state of the last completed commit of an export.

        Raises:
            LostProgressError: no commit of the active timeline is of an export, and there are
                archived commits; or Hudi's sink connector was the last writer.
        """
        meta = self.meta_client()
        commits = meta.getActiveTimeline().getCommitsTimeline().filterCompletedInstants()
        progress = last_progress(self._said(commits))
        if progress is None:
            self._require_none(meta, commits)
        return progress

    def _said(self, commits: Any) -> Iterator[Progress | Changes | None]:  # noqa: ANN401
        for instant in commits.getReverseOrderedInstants().toArray():
            extra = _extra_metadata(commits, instant)
            where = f"{self._base_path}: the commit {instant.requestedTime()}"
            yield from_properties(extra, where)

    def rows_of(self, commit: str) -> tuple[int, int]:
        """Return the number of rows that an export's commit has written, and the number of those
        that are marked as deleted (`_hoodie_is_deleted`), which the first number may include.

        Both are 0 if the commit is not found.
        """
        commits = self.meta_client().getActiveTimeline().getCommitsTimeline()
        for instant in commits.filterCompletedInstants().getReverseOrderedInstants().toArray():
            if _extra_metadata(commits, instant).get(COMMIT_KEY) == commit:
                metadata = commits.readCommitMetadata(instant)
                written = int(metadata.fetchTotalInsertRecordsWritten())
                written += int(metadata.fetchTotalUpdateRecordsWritten())
                return written, int(metadata.getTotalRecordsDeleted())
        return 0, 0

    def _require_none(self, meta: Any, commits: Any) -> None:  # noqa: ANN401
        last = commits.lastInstant()
        if last.isPresent():
            offsets = _extra_metadata(commits, last.get()).get(CONNECT_KEY)
            if offsets:
                raise LostProgressError(
                    f"{self._base_path} was written by Hudi's Kafka Connect sink, up to the "
                    f"offsets {offsets}. To go on from there, stop that sink and pass these "
                    "offsets as --starting-offsets"
                )
        if not meta.getArchivedTimeline().empty():
            raise LostProgressError(
                f"{self._base_path}: none of the commits in its active timeline is of this "
                "export, and older ones were archived. If it has never been exported into, or "
                "you know up to where, set --starting-offsets"
            )


def _extra_metadata(commits: Any, instant: Any) -> dict[str, str]:  # noqa: ANN401
    if instant.getAction() not in {"commit", "deltacommit"}:
        return {}  # other actions, such as clustering, have another kind of metadata
    extra = commits.readCommitMetadata(instant).getExtraMetadata()
    return {str(key): str(value) for key, value in dict(extra).items()}


_LOST: Final = "the lease on the table was lost"


class HudiTable:
    """Use it in a `with` block, during which it holds the lease."""

    def __init__(self, spark: SparkSession, options: HudiOptions, lease: Lease) -> None:
        """Create it; raise MissingJarsError if Spark does not have Hudi."""
        require_class(spark, "org.apache.hudi.DataSourceUtils", TableJar.HUDI)
        self._spark = spark
        self._options = options
        self._lease = lease
        self._timeline = Timeline(spark, options.base_path)

    def __enter__(self) -> Self:
        """Take the lease; raise OtherWriterError if another export holds it and renews it."""
        self._lease.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lease."""
        self._lease.__exit__(kind, error, trace)

    @property
    def name(self) -> str:
        """The table's path."""
        return self._options.base_path

    def row_checks(self) -> tuple[RowCheck, ...]:
        """Properties that the options do not set come from the table."""
        return hudi_checks({**self._timeline.properties(), **self._options.write})

    def recover(self) -> None:
        """Roll back the pending commits of dead writers. Needs the lease."""
        # Without the lease, the pending commit may belong to a live writer.
        self._lease.require()
        if not self._timeline.exists() or not self._timeline.has_pending():
            return
        java = jvm(self._spark)
        options = java.java.util.HashMap()
        for name, value in self._options.write.items():
            options.put(name, value)
        client = java.org.apache.hudi.DataSourceUtils.createHoodieClient(
            java_context(self._spark), None, self.name, self._options.table, options
        )
        try:
            client.rollbackFailedWrites(self._timeline.meta_client())
        except SPARK_ERRORS as error:
            raise not_committed(error, self.name) from error
        finally:
            client.close()

    def progress(self) -> Progress | None:
        """Read it from the timeline; None without a table."""
        return self._timeline.progress() if self._timeline.exists() else None

    def write(
        self, frame: DataFrame, progress: Progress, seconds: float, rows: Callable[[], int]
    ) -> None:
        """The rows are counted in the commit, which readers see already."""
        if not is_at(self.progress, progress.since):
            raise OtherWriterError(f"{self.name}: another export has committed meanwhile")
        # After the offsets were read, which may have taken long.
        self._lease.require()
        context = self._spark.sparkContext
        with cancel_jobs_after(context, seconds, self._why_to_stop) as watch:
            try:
                writer = self._named(frame).write.format("hudi").mode("append")
                writer.options(**self._options.write, **to_properties(progress)).save(self.name)
            except UnfitRowsError as error:
                raise refused_rows(error, self.name) from None
            except SPARK_ERRORS as error:
                if watch.reason == _LOST:
                    raise OtherWriterError(f"{self.name}: {_LOST}; this export stops") from error
                if watch.reason:
                    raise CommitTimedOutError(
                        f"{self.name}: the commit was cancelled: {watch.reason}"
                    ) from error
                raise not_committed(error, self.name) from error
        given, (written, deleted) = rows(), self._timeline.rows_of(progress.commit)
        written = min(max(written, given), written + deleted)
        where = f"{self.name}: the commit {progress.commit}, which readers see: roll it back"
        require_rows(where, given, written, merges=merges_rows(self._options.write))

    def _named(self, frame: DataFrame) -> DataFrame:
        """Return the rows with the names of the table's columns: Hudi compares names with case.

        Raises:
            UnfitRowsError: a name is ambiguous, or Hudi cannot have it.
        """
        require_avro_names(frame.schema)
        matching = matching_of(self._spark)
        if not self._timeline.exists():
            matching.require_distinct(frame.schema)
            return frame
        table = self._spark.read.format("hudi").load(self.name).schema
        return converted(frame, matching, matching.named_as(table, frame.schema))

    def _why_to_stop(self) -> str:
        return _LOST if self._lease.lost else ""
