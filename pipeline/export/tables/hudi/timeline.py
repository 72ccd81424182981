"""Hudi's timeline, read through Spark's gateway: the commits that readers see."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from sidetier.pipeline.export.tables.errors import LostProgressError
from sidetier.pipeline.export.tables.gateway import java_context, jvm
from sidetier.pipeline.export.tables.history import last_progress
from sidetier.pipeline.export.tables.progress import Changes, Progress, from_properties

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
