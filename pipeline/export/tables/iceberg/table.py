"""An Iceberg table as an export sees it.

Left alone, Iceberg lets appends of two writers both in, whatever each has begun from. So a commit
has these steps, and a kill leaves:

0. where rows have columns that the table does not, the table gets them, in a change of its own.
   Killed here: columns that are null in all rows;
1. the rows are written, and a snapshot of them is *staged*: nobody sees it. Killed here: files and
   a snapshot that `expire_snapshots` and `remove_orphan_files` clear away;
2. the snapshot is *published* by one change of the table's metadata, which is made of metadata
   whose last offsets are those that the rows begin at, and which the catalog refuses where the
   table has changed meanwhile. Killed here: the commit, or nothing of it.

Where only others have changed it (a compaction, a delete), the same files are staged again.
"""

from collections.abc import Callable, Mapping
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
from sidetier.pipeline.export.tables.iceberg.options import IcebergOptions
from sidetier.pipeline.export.tables.progress import Progress, to_properties
from sidetier.pipeline.export.tables.spark_jars import TableJar
from sidetier.segments.errors import ConfigurationError

Setting = Callable[[str], str | None]
"""A setting of Spark's session by its name; None where nobody has set it."""

_HADOOP: Final = ("hadoop", "org.apache.iceberg.hadoop.hadoopcatalog")
_RENAMES: Final = ("file", "hdfs", "viewfs", "abfs", "abfss")
_WITHIN_ONE_PROCESS: Final = "InMemoryLockManager"


def catalog_settings(catalog: str) -> str:
    """What the names of its settings begin with."""
    return f"spark.sql.catalog.{catalog}"


def catalog_of(table: str) -> str:
    """The first part of a table's name, which may be in backquotes."""
    if table.startswith("`"):
        return table[1:].partition("`")[0]
    return table.partition(".")[0]


def require_one_step(catalog: str, setting: Setting, default_scheme: str) -> None:
    """Refuse a catalog that renames files where that is not one step, and nothing locks.

    Args:
        catalog: its name.
        setting: of the session.
        default_scheme: of a warehouse that is named without one.

    Raises:
        ConfigurationError: says what to do.
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
    """Several writers do no harm: all but one of them are refused at their commit."""

    def __init__(self, spark: SparkSession, options: IcebergOptions) -> None:
        """Raises MissingJarsError where Spark does not know Iceberg, ConfigurationError where the
        catalog would lose one of two commits.
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
        """See `Table`: what was staged and not published is seen by nobody, and stays."""

    def progress(self) -> Progress | None:
        """See `Table`."""
        if not self._exists():
            return None
        return self._metadata.progress(self._metadata.look())

    def write(self, frame: DataFrame, progress: Progress, seconds: float) -> None:
        """See `Table`. The table is made where there is none."""
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
        """Null where the newest schema has no such field any more."""
        known = {name.lower() for name in frame.columns}
        missing = {
            one.name: lit(None).cast(one.dataType)
            for one in self._spark.table(self.name).schema
            if one.name.lower() not in known
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
    told = ", ".join(f"{_text(name)} = {_text(value)}" for name, value in properties.items())
    return f" TBLPROPERTIES ({told})"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
