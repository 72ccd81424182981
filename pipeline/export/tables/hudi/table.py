"""A Hudi table of an export.

Hudi's data source makes the whole commit. It rolls back what an earlier writer has left, writes
files that no reader takes as valid, and completes the commit with one new file in the timeline.
After a kill before that file, the next run undoes the write. After a kill behind it, the commit
exists.

Nothing in Hudi keeps two writers of one table, each with its own files, from committing the same
records. So the export holds a lease from before it reads the offsets until after the commit. A
writer that has lost the lease stops. If it comes back after the next writer has begun, that one has
rolled back its pending commit, which it then cannot complete.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import DataFrame, SparkSession

from sidetier.pipeline.export.errors import OtherWriterError
from sidetier.pipeline.export.tables.cancelling import given_up_after
from sidetier.pipeline.export.tables.errors import CommitTimedOutError, LostProgressError
from sidetier.pipeline.export.tables.gateway import (
    SPARK_ERRORS,
    java_context,
    jvm,
    not_committed,
    require_class,
)
from sidetier.pipeline.export.tables.history import is_at, last_progress
from sidetier.pipeline.export.tables.hudi.options import HudiOptions
from sidetier.pipeline.export.tables.lease import Lease
from sidetier.pipeline.export.tables.progress import (
    Changes,
    Progress,
    from_properties,
    to_properties,
)
from sidetier.pipeline.export.tables.spark_jars import TableJar

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

    def _require_none(self, meta: Any, commits: Any) -> None:  # noqa: ANN401
        last = commits.lastInstant()
        if last.isPresent():
            offsets = _extra_metadata(commits, last.get()).get(CONNECT_KEY)
            if offsets:
                raise LostProgressError(
                    f"{self._base_path} was written by Hudi's Kafka Connect sink, up to the "
                    f"offsets {offsets}. To go on from there, stop that sink and name these "
                    "offsets as startingOffsets"
                )
        if not meta.getArchivedTimeline().empty():
            raise LostProgressError(
                f"{self._base_path}: none of the commits in its active timeline is of this "
                "export, and older ones were archived. If it has never been exported into, or "
                "you know up to where, name startingOffsets"
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

    def recover(self) -> None:
        """Roll back the pending commits of dead writers. See `Table.recover`."""
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
        """See `Table.progress`."""
        return self._timeline.progress() if self._timeline.exists() else None

    def write(self, frame: DataFrame, progress: Progress, seconds: float) -> None:
        """See `Table.write`."""
        if not is_at(self.progress, progress.since):
            raise OtherWriterError(f"{self.name}: another export has committed meanwhile")
        self._lease.require()
        context = self._spark.sparkContext
        with given_up_after(context, seconds, self._why_to_stop) as watch:
            try:
                writer = frame.write.format("hudi").mode("append")
                writer.options(**self._options.write, **to_properties(progress)).save(self.name)
            except SPARK_ERRORS as error:
                if watch.reason == _LOST:
                    raise OtherWriterError(f"{self.name}: {_LOST}; this export stops") from error
                if watch.reason:
                    raise CommitTimedOutError(
                        f"{self.name}: the commit was given up: {watch.reason}"
                    ) from error
                raise not_committed(error, self.name) from error

    def _why_to_stop(self) -> str:
        return _LOST if self._lease.lost else ""
