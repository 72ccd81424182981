"""An Iceberg table of an export, and its metadata through Spark's gateway.

By itself, Iceberg accepts the appends of two writers, whatever table state each has started from.
So a commit has these steps, and a kill leaves this:

0. If rows have columns that the table does not have, the table gets them, in a change of its own,
   after everything that may refuse the rows was checked. After a kill, these columns are null in
   all rows.
1. Spark writes the rows and *stages* a snapshot of them, which readers do not see. After a kill,
   files and a snapshot are left that `expire_snapshots` and `remove_orphan_files` remove.
2. One change of the table's metadata *publishes* the snapshot. It is based on metadata whose last
   offsets are those at which the rows start, and every catalog refuses it if the table has changed
   since. So checks on that metadata hold for the commit. A kill leaves the whole commit, or nothing
   of it.

If only other programs have changed the table (a compaction, a delete), the same files are staged
again.

If a snapshot stores only changes since one with the whole state, the same change of metadata puts a
tag on the latter, because `expire_snapshots` keeps tagged snapshots. A snapshot with the whole
state removes the tag.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sidetier.pipeline.export.errors import (
    CommitTimedOutError,
    LostProgressError,
    NotCommittedError,
    OtherWriterError,
)
from sidetier.pipeline.export.sinks.tables.cancelling import Watch, cancel_jobs_after
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    COMMIT_KEY,
    PREFIX,
    STATE_TAG,
    WHOLE_KEY,
    Changes,
    Progress,
    from_properties,
    is_at,
    last_progress,
    to_properties,
)
from sidetier.pipeline.export.sinks.tables.gateway import (
    SPARK_ERRORS,
    cause_class,
    columns_in_sql,
    default_scheme,
    java_session,
    java_type,
    jvm,
    not_committed,
    refused_rows,
    require_class,
)
from sidetier.pipeline.export.sinks.tables.row_checks import (
    RowCheck,
    iceberg_checks,
    identity_fields,
)
from sidetier.pipeline.export.sinks.tables.row_counts import require_rows
from sidetier.pipeline.export.sinks.tables.row_types import (
    UnfitRowsError,
    converted,
    filled,
    matching_of,
)
from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json

_MAIN: Final = "main"
_STAGED: Final = "wap.id"
_STAGING: Final = "write.wap.enabled"
_LOST_RACE: Final = "org.apache.iceberg.exceptions.CommitFailedException"


@dataclass(frozen=True, slots=True)
class Seen:
    """The metadata that was read once, and the operations that returned it: Iceberg's own
    objects.
    """

    operations: Any
    metadata: Any


class IcebergMetadata:
    """The metadata of one table. Each `refresh` reads it again."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark = spark
        self._table = table

    def refresh(self) -> Seen:
        """Read the catalog's present metadata."""
        operations = self.load().operations()
        return Seen(operations, operations.refresh())

    def load(self) -> Any:  # noqa: ANN401 - Iceberg's `Table`
        """Load the table, which must exist."""
        util = jvm(self._spark).org.apache.iceberg.spark.Spark3Util
        return util.loadIcebergTable(java_session(self._spark), self._table)

    def allow_staging(self) -> None:
        """Allow snapshots that readers do not see yet. Changes a table property once."""
        table = self.load()
        if str(dict(table.properties()).get(_STAGING, "false")).lower() != "true":
            table.updateProperties().set(_STAGING, "true").commit()

    def with_columns(self, rows: StructType, adds: bool) -> tuple[StructType, Any]:  # noqa: FBT001
        """Return the type of the table with the columns of rows, and Iceberg's change of it.

        Nothing is changed before the change is committed. It is None if the table has all columns,
        or if columns are not added.

        Raises:
            SPARK_ERRORS: a column has another type, and its values would not fit.
        """
        table = self.load()
        if not adds:
            return self._spark_type(table.schema()), None
        schema = _util(self._spark).convert(java_type(self._spark, rows))
        change = table.updateSchema().unionByNameWith(schema)
        changed = change.apply()
        return self._spark_type(changed), None if changed.sameSchema(table.schema()) else change

    def type(self) -> StructType:
        """Return the present type of the table."""
        return self._spark_type(self.load().schema())

    def _spark_type(self, schema: Any) -> StructType:  # noqa: ANN401 - Iceberg's `Schema`
        converted = _util(self._spark).convert(schema)
        return StructType.fromJson(parse_json(converted.json()))

    def identity_fields(self) -> list[str]:
        """Return the fields by whose values the table is partitioned, without a transform."""
        table = self.load()
        return [
            str(table.schema().findColumnName(field.sourceId()))
            for field in table.spec().fields()
            if field.transform().isIdentity()
        ]

    def progress(self, seen: Seen) -> Progress | None:
        """Return the state of the last snapshot of an export among the current one and its
        ancestors.

        Raises:
            LostProgressError: no snapshot is an export's, and older ones have expired.
        """
        progress = last_progress(self._said(seen), lambda commit: self._tagged(seen, commit))
        if progress is None:
            self._require_whole(seen)
        return progress

    def _said(self, seen: Seen) -> Iterator[Progress | Changes | None]:
        for snapshot in _ancestors(seen.metadata):
            where = f"{self._table}: the snapshot {snapshot.snapshotId()}"
            yield from_properties(_summary(snapshot), where)

    def _tagged(self, seen: Seen, commit: str) -> Progress | None:
        """Return the state of the tagged snapshot if it is of this commit.

        The snapshots between it and the current one may have expired.
        """
        tag = seen.metadata.ref(STATE_TAG)
        snapshot = None if tag is None else seen.metadata.snapshot(tag.snapshotId())
        if snapshot is None:
            return None
        state = from_properties(_summary(snapshot), f"{self._table}: the tag {STATE_TAG}")
        return state if isinstance(state, Progress) and state.commit == commit else None

    def _require_whole(self, seen: Seen) -> None:
        for snapshot in _ancestors(seen.metadata):
            parent = snapshot.parentId()
            if parent is not None and seen.metadata.snapshot(parent) is None:
                raise LostProgressError(
                    f"{self._table}: no snapshot is of this export, and older ones have expired. "
                    "If it has never been exported into, or you know up to where, set "
                    "--starting-offsets"
                )

    def staged(self, seen: Seen, commit: str) -> Any:  # noqa: ANN401
        """Return the newest snapshot that was staged under this name; None if there is none."""
        named = [
            snapshot
            for snapshot in seen.metadata.snapshots()
            if _summary(snapshot).get(_STAGED) == commit
        ]
        return named[-1] if named else None

    def added_rows(self, snapshot: Any) -> int:  # noqa: ANN401
        """Return the number of rows that a snapshot adds, as its summary states it."""
        return int(_summary(snapshot).get(_ADDED_ROWS, "0"))

    def follows_shown(self, seen: Seen, snapshot: Any) -> bool:  # noqa: ANN401
        """Return whether a staged snapshot is based on the current one."""
        shown = seen.metadata.currentSnapshot()
        return bool(snapshot.parentId() == (None if shown is None else shown.snapshotId()))

    def stage_again(self, snapshot: Any, properties: Mapping[str, str]) -> None:  # noqa: ANN401
        """Stage the same files in a new snapshot that is based on the current one."""
        table = self.load()
        append = table.newAppend().stageOnly()
        for data_file in snapshot.addedDataFiles(table.io()):
            append = append.appendFile(data_file)
        for name, value in properties.items():
            append = append.set(name, value)
        append.commit()

    def publish(self, seen: Seen, snapshot: Any) -> bool:  # noqa: ANN401
        """Make a staged snapshot the current one; return False if the table has changed since
        `seen`.

        Raises:
            Py4JJavaError: any other error. The snapshot may have been published.
        """
        builder = jvm(self._spark).org.apache.iceberg.TableMetadata.buildFrom(seen.metadata)
        builder = builder.setBranchSnapshot(snapshot.snapshotId(), _MAIN)
        shown = self._with_tag(builder, seen, _summary(snapshot).get(WHOLE_KEY)).build()
        try:
            seen.operations.commit(seen.metadata, shown)
        except Py4JJavaError as error:
            if cause_class(error) == _LOST_RACE:
                return False
            raise
        return True

    def _with_tag(self, builder: Any, seen: Seen, whole: str | None) -> Any:  # noqa: ANN401
        """Tag the snapshot with the whole state to which this commit refers; else remove
        the tag.
        """
        tag = seen.metadata.ref(STATE_TAG)
        if whole is None:
            return builder if tag is None else builder.removeRef(STATE_TAG)
        named = (
            snapshot.snapshotId()
            for snapshot in _ancestors(seen.metadata)
            if _summary(snapshot).get(COMMIT_KEY) == whole
        )
        snapshot_id = next(named, None)
        # If the history has lost the snapshot, the tag still has it.
        if snapshot_id is None or (tag is not None and tag.snapshotId() == snapshot_id):
            return builder
        reference = jvm(self._spark).org.apache.iceberg.SnapshotRef.tagBuilder(snapshot_id).build()
        return builder.setRef(STATE_TAG, reference)


def _util(spark: SparkSession) -> Any:  # noqa: ANN401 - a Java class
    return jvm(spark).org.apache.iceberg.spark.SparkSchemaUtil


def staged_properties(commit: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the summary of a snapshot that is staged without Spark's writer."""
    return {_STAGED: commit, **properties}


def _ancestors(metadata: Any) -> Iterator[Any]:  # noqa: ANN401
    snapshot = metadata.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else metadata.snapshot(parent)


def _summary(snapshot: Any) -> dict[str, str]:  # noqa: ANN401
    return {str(key): str(value) for key, value in dict(snapshot.summary()).items()}


_SNAPSHOT: Final = "snapshot-property."
_REFUSED: Final = ("isolation-level", "validate-from-snapshot-id", "branch")


@dataclass(frozen=True, slots=True)
class IcebergOptions:
    """One table, and how it is created and written.

    Attributes:
        table: name of the table, with its catalog's name: `lake.db.orders`.
        partitioned_by: content of PARTITIONED BY if the table is created: `days(timestamp)`.
        properties: table properties if the table is created: `write.format.default` and others.
        write: options of Spark's writer: `target-file-size-bytes`, `snapshot-property.*`.
        adds_columns: whether the table gets columns of rows that it does not have.
    """

    table: str
    partitioned_by: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    write: Mapping[str, str] = field(default_factory=dict)
    adds_columns: bool = False

    def __post_init__(self) -> None:
        if not self.table.strip():
            raise ConfigurationError("the name of the Iceberg table is missing")
        for name in self.write:
            if name in _REFUSED or name.startswith(f"{_SNAPSHOT}{PREFIX}"):
                raise ConfigurationError(f"{name} is set by the export itself")


Setting = Callable[[str], str | None]
"""Returns a setting of Spark's session by its name; None if it is not set."""

_HADOOP: Final = ("hadoop", "org.apache.iceberg.hadoop.hadoopcatalog")
_RENAMES: Final = ("file", "hdfs", "viewfs", "abfs", "abfss")
_WITHIN_ONE_PROCESS: Final = "InMemoryLockManager"


def catalog_settings(catalog: str) -> str:
    """Return the prefix of a catalog's settings."""
    return f"spark.sql.catalog.{catalog}"


def catalog_of(table: str) -> str:
    """Return the first part of a table's name, which may be in backquotes."""
    if table.startswith("`"):
        return table[1:].partition("`")[0]
    return table.partition(".")[0]


def require_one_step(catalog: str, setting: Setting, default_scheme: str) -> None:
    """Refuse a catalog that commits by renaming files where a rename is not atomic and has no lock.

    Args:
        catalog: name of the catalog.
        setting: returns a setting of the session.
        default_scheme: scheme of a warehouse path that names none.

    Raises:
        ConfigurationError: the catalog could lose commits. The message names the remedy.
    """
    prefix = catalog_settings(catalog)
    kind = setting(f"{prefix}.catalog-impl") or setting(f"{prefix}.type") or ""
    scheme = urlsplit(setting(f"{prefix}.warehouse") or "").scheme.lower() or default_scheme
    if kind.lower() not in _HADOOP:
        return
    lock = setting(f"{prefix}.lock-impl") or _WITHIN_ONE_PROCESS
    if scheme in _RENAMES or not lock.endswith(_WITHIN_ONE_PROCESS):
        return
    raise ConfigurationError(
        f"the catalog {catalog} is of the type hadoop, which commits by renaming a file: on "
        f"{scheme}:// that is not a single step, and of two commits at once one is lost. Use a "
        "catalog that commits in one step (rest, jdbc, glue, hive), or name a lock that all "
        f"writers share as {prefix}.lock-impl"
    )


_MAX_TRIES: Final = 20
_STAGE_AS: Final = "spark.wap.id"
_ADDED_ROWS: Final = "added-records"
"""Property of a snapshot's summary."""


class IcebergTable:
    """Several writers at once do no harm: the commits of all but one are refused."""

    def __init__(self, spark: SparkSession, options: IcebergOptions) -> None:
        """Create it.

        Raises:
            MissingJarsError: Spark does not have Iceberg.
            ConfigurationError: the catalog could lose one of two commits.
        """
        require_class(spark, "org.apache.iceberg.spark.Spark3Util", TableJar.ICEBERG)
        _require_one_step(spark, options.table)
        self._spark = spark
        self._options = options
        self._metadata = IcebergMetadata(spark, options.table)

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return self._options.table

    def row_checks(self) -> tuple[RowCheck, ...]:
        """Without a table, the checks follow from `partitioned_by`."""
        if not self._exists():
            return iceberg_checks(identity_fields(self._options.partitioned_by))
        return iceberg_checks(self._metadata.identity_fields())

    def recover(self) -> None:
        """Leave snapshots that were staged and not published. Readers do not see them."""

    def progress(self) -> Progress | None:
        """Read it from the refreshed metadata; None without a table."""
        if not self._exists():
            return None
        return self._metadata.progress(self._metadata.refresh())

    def write(
        self, frame: DataFrame, progress: Progress, seconds: float, rows: Callable[[], int]
    ) -> None:
        """Create the table if it does not exist. The rows of the staged snapshot are counted before
        readers see it.
        """
        with cancel_jobs_after(self._spark.sparkContext, seconds) as watch:
            try:
                # First: another export may have changed the table, or have dropped it.
                self._require_since(progress)
                self._stage(self._prepared(frame), progress)
                self._publish(progress, watch, rows())
            except UnfitRowsError as error:
                raise refused_rows(error, self.name) from None
            except SPARK_ERRORS as error:
                if watch.reason:
                    raise CommitTimedOutError(
                        f"{self.name}: the commit was cancelled: {watch.reason}"
                    ) from error
                raise not_committed(error, self.name) from error

    def _exists(self) -> bool:
        return self._spark.catalog.tableExists(self.name)

    def _prepared(self, frame: DataFrame) -> DataFrame:
        """Create the table, or add columns to it; return the rows with its columns.

        Whatever may refuse the rows is checked before the table changes.

        Raises:
            UnfitRowsError: the rows do not fit the table, which is unchanged.
            RefusedRowsError: a column has another type.
        """
        matching = matching_of(self._spark)
        if self._exists():
            named = matching.named_as(self._metadata.type(), frame.schema)
            with_columns, change = self._with_columns(named)
            frame = converted(frame, matching, filled(with_columns, named))
            if change is not None:
                change.commit()
        else:
            matching.require_distinct(frame.schema)
            partitioned = self._options.partitioned_by
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.name} ({columns_in_sql(frame)}) USING iceberg"
                + (f" PARTITIONED BY ({partitioned})" if partitioned else "")
                + _in_sql(self._options.properties)
            )
        self._metadata.allow_staging()
        return frame

    def _with_columns(self, rows: StructType) -> tuple[StructType, Any]:
        try:
            return self._metadata.with_columns(rows, self._options.adds_columns)
        except SPARK_ERRORS as error:
            raise refused_rows(error, self.name) from error

    def _stage(self, frame: DataFrame, progress: Progress) -> None:
        writer = frame.writeTo(self.name).options(**self._options.write)
        for name, value in to_properties(progress).items():
            writer = writer.option(f"snapshot-property.{name}", value)
        # This setting is the session's: left set, it would stage all other writes of the session.
        before = self._spark.conf.get(_STAGE_AS, None)
        self._spark.conf.set(_STAGE_AS, progress.commit)
        try:
            writer.append()
        finally:
            if before is None:
                self._spark.conf.unset(_STAGE_AS)
            else:
                self._spark.conf.set(_STAGE_AS, before)

    def _publish(self, progress: Progress, watch: Watch, rows: int) -> None:
        for _ in range(_MAX_TRIES):
            if watch.reason:
                raise CommitTimedOutError(f"{self.name}: not committed: {watch.reason}")
            seen = self._metadata.refresh()
            self._require_seen(seen, progress)
            staged = self._metadata.staged(seen, progress.commit)
            if staged is None:
                raise NotCommittedError(
                    f"{self.name}: the staged snapshot of the commit {progress.commit} has expired"
                )
            written = self._metadata.added_rows(staged)
            require_rows(f"{self.name}: the commit {progress.commit}", rows, written)
            if not self._metadata.follows_shown(seen, staged):
                properties = staged_properties(progress.commit, to_properties(progress))
                self._metadata.stage_again(staged, properties)
            elif self._metadata.publish(seen, staged):
                return
        raise NotCommittedError(
            f"{self.name}: others have changed the table {_MAX_TRIES} times in a row meanwhile"
        )

    def _require_since(self, progress: Progress) -> None:
        if self._exists():
            self._require_seen(self._metadata.refresh(), progress)
        elif progress.since:
            raise OtherWriterError(f"{self.name}: the table was dropped meanwhile")

    def _require_seen(self, seen: Seen, progress: Progress) -> None:
        if not is_at(lambda: self._metadata.progress(seen), progress.since):
            raise OtherWriterError(f"{self.name}: another export has committed meanwhile")


def _require_one_step(spark: SparkSession, table: str) -> None:
    def setting(name: str) -> str | None:
        return spark.conf.get(name, None)

    named = catalog_of(table)
    # If the first part of a name is not a catalog, it is a namespace of the current catalog.
    is_catalog = setting(catalog_settings(named)) is not None
    catalog = named if is_catalog else spark.catalog.currentCatalog()
    require_one_step(catalog, setting, default_scheme(spark))


def _in_sql(properties: Mapping[str, str]) -> str:
    if not properties:
        return ""
    assignments = ", ".join(f"{_text(name)} = {_text(value)}" for name, value in properties.items())
    return f" TBLPROPERTIES ({assignments})"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
