"""An Iceberg table's metadata, through Spark's gateway: its snapshots, and the current one.

One change of the table's metadata publishes a snapshot. It is based on the metadata that was read,
and every catalog refuses it if another change came in between. So checks on that metadata hold for
the commit.

If a snapshot stores only changes since one with the whole state, the same change of metadata puts a
tag on the latter, because `expire_snapshots` keeps tagged snapshots. A snapshot with the whole
state removes the tag.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from sidetier.pipeline.export.tables.errors import LostProgressError
from sidetier.pipeline.export.tables.gateway import cause_class, java_session, jvm
from sidetier.pipeline.export.tables.history import last_progress
from sidetier.pipeline.export.tables.progress import (
    COMMIT_KEY,
    WHOLE_KEY,
    Changes,
    Progress,
    from_properties,
)

STATE_TAG: Final = "sidetier_state"
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
    """The metadata of one table. Each `look` reads it again."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark = spark
        self._table = table

    def look(self) -> Seen:
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

    def add_columns(self, frame: DataFrame) -> None:
        """Add the columns of rows that the table does not have, at any depth.

        Raises:
            SPARK_ERRORS: a column has another type, and its values would not fit.
        """
        convert = jvm(self._spark).org.apache.iceberg.spark.SparkSchemaUtil.convert
        schema = convert(frame._jdf.schema())  # noqa: SLF001 -- PySpark has no public name for it
        self.load().updateSchema().unionByNameWith(schema).commit()

    def progress(self, seen: Seen) -> Progress | None:
        """Return the state of the last snapshot of an export among the current one and its
        ancestors.

        Raises:
            LostProgressError: there is no such snapshot, and older ones have expired.
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
                    "If it has never been exported into, or you know up to where, name "
                    "startingOffsets"
                )

    def staged(self, seen: Seen, commit: str) -> Any:  # noqa: ANN401
        """Return the newest snapshot that was staged under this name; None if there is none."""
        named = [
            snapshot
            for snapshot in seen.metadata.snapshots()
            if _summary(snapshot).get(_STAGED) == commit
        ]
        return named[-1] if named else None

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
        if snapshot_id is None or (tag is not None and tag.snapshotId() == snapshot_id):
            return builder
        reference = jvm(self._spark).org.apache.iceberg.SnapshotRef.tagBuilder(snapshot_id).build()
        return builder.setRef(STATE_TAG, reference)


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
