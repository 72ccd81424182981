"""An Iceberg table of an export.

By itself, Iceberg accepts the appends of two writers, whatever table state each has started from.
So a commit has these steps, and a kill leaves this:

0. If rows have columns that the table does not have, the table gets them, in a change of its own.
   After a kill, these columns are null in all rows.
1. Spark writes the rows and *stages* a snapshot of them, which readers do not see. After a kill,
   files and a snapshot are left that `expire_snapshots` and `remove_orphan_files` remove.
2. One change of the table's metadata *publishes* the snapshot. It is based on metadata whose last
   offsets are those at which the rows start, and the catalog refuses it if the table has changed
   since. A kill leaves the whole commit, or nothing of it.

If only other programs have changed the table (a compaction, a delete), the same files are staged
again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from sidetier.pipeline.export.errors import OtherWriterError
from sidetier.pipeline.export.tables.cancelling import Watch, given_up_after
from sidetier.pipeline.export.tables.errors import CommitTimedOutError, NotCommittedError
from sidetier.pipeline.export.tables.gateway import (
    SPARK_ERRORS,
    columns_in_sql,
    default_scheme,
    not_committed,
    require_class,
)
from sidetier.pipeline.export.tables.history import is_at
from sidetier.pipeline.export.tables.iceberg.metadata import (
    IcebergMetadata,
    Seen,
    staged_properties,
)
from sidetier.pipeline.export.tables.progress import PREFIX, Progress, to_properties
from sidetier.pipeline.export.tables.spark_jars import TableJar
from sidetier.segments.errors import ConfigurationError

_SNAPSHOT: Final = "snapshot-property."
_REFUSED: Final = ("isolation-level", "validate-from-snapshot-id", "branch")


@dataclass(frozen=True, slots=True)
class IcebergOptions:
    """One table, and how it is created and written.

    Attributes:
        table: name of the table, with that of its catalog: `lake.db.orders`.
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
        ConfigurationError: the catalog could lose commits. The message says what to do.
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
        f"{scheme}:// that is no single step, and of two commits at once one is lost. Use a "
        "catalog that commits in one step (rest, jdbc, glue, hive), or name a lock that all "
        f"writers share as {prefix}.lock-impl"
    )


_MOST_TRIES: Final = 20
_STAGE_AS: Final = "spark.wap.id"


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

    def recover(self) -> None:
        """Leave snapshots that were staged and not published. Readers do not see them."""

    def progress(self) -> Progress | None:
        """See `Table.progress`."""
        if not self._exists():
            return None
        return self._metadata.progress(self._metadata.look())

    def write(self, frame: DataFrame, progress: Progress, seconds: float) -> None:
        """See `Table.write`. The table is created if it does not exist."""
        with given_up_after(self._spark.sparkContext, seconds) as watch:
            try:
                self._make(frame)
                self._require_since(self._metadata.look(), progress)
                self._stage(frame, progress)
                self._publish(progress, watch)
            except SPARK_ERRORS as error:
                if watch.reason:
                    raise CommitTimedOutError(
                        f"{self.name}: the commit was given up: {watch.reason}"
                    ) from error
                raise not_committed(error, self.name) from error

    def _exists(self) -> bool:
        return self._spark.catalog.tableExists(self.name)

    def _make(self, frame: DataFrame) -> None:
        if not self._exists():
            partitioned = self._options.partitioned_by
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.name} ({columns_in_sql(frame)}) USING iceberg"
                + (f" PARTITIONED BY ({partitioned})" if partitioned else "")
                + _in_sql(self._options.properties)
            )
        elif self._options.adds_columns:
            self._metadata.add_columns(frame)
        self._metadata.allow_staging()

    def _stage(self, frame: DataFrame, progress: Progress) -> None:
        if self._options.adds_columns:
            frame = self._with_columns_of_table(frame)
        writer = frame.writeTo(self.name).options(**self._options.write)
        for name, value in to_properties(progress).items():
            writer = writer.option(f"snapshot-property.{name}", value)
        before = self._spark.conf.get(_STAGE_AS, None)
        self._spark.conf.set(_STAGE_AS, progress.commit)
        try:
            writer.append()
        finally:
            if before is None:
                self._spark.conf.unset(_STAGE_AS)
            else:
                self._spark.conf.set(_STAGE_AS, before)

    def _with_columns_of_table(self, frame: DataFrame) -> DataFrame:
        """Add null columns for fields of the table that the newest schema does not have
        any more.
        """
        known = {name.lower() for name in frame.columns}
        missing = {
            column.name: lit(None).cast(column.dataType)
            for column in self._spark.table(self.name).schema
            if column.name.lower() not in known
        }
        return frame.withColumns(missing) if missing else frame

    def _publish(self, progress: Progress, watch: Watch) -> None:
        for _ in range(_MOST_TRIES):
            if watch.reason:
                raise CommitTimedOutError(f"{self.name}: not committed: {watch.reason}")
            seen = self._metadata.look()
            self._require_since(seen, progress)
            staged = self._metadata.staged(seen, progress.commit)
            if staged is None:
                raise NotCommittedError(
                    f"{self.name}: the staged snapshot of the commit {progress.commit} has expired"
                )
            if not self._metadata.follows_shown(seen, staged):
                properties = staged_properties(progress.commit, to_properties(progress))
                self._metadata.stage_again(staged, properties)
            elif self._metadata.publish(seen, staged):
                return
        raise NotCommittedError(
            f"{self.name}: others have changed the table {_MOST_TRIES} times in a row meanwhile"
        )

    def _require_since(self, seen: Seen, progress: Progress) -> None:
        if not is_at(lambda: self._metadata.progress(seen), progress.since):
            raise OtherWriterError(f"{self.name}: another export has committed meanwhile")


def _require_one_step(spark: SparkSession, table: str) -> None:
    def setting(name: str) -> str | None:
        return spark.conf.get(name, None)

    named = catalog_of(table)
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
