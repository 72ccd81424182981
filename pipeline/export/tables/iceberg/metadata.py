"""An Iceberg table's metadata, through Spark's gateway: what its snapshots say, and which is shown.

A snapshot is published by one change of the table's metadata, made of the metadata that was looked
at: every catalog refuses it where another change came in between. So what is checked on that
metadata holds for the commit.

Where a snapshot says only what has changed since one with the whole state, the same change puts a
tag on that one: `expire_snapshots` keeps what has a tag. A snapshot with the whole state takes the
tag away.
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
    """The metadata of one look, and the operations that it came from: Iceberg's own objects."""

    operations: Any
    metadata: Any


class IcebergMetadata:
    """One table's. Each look reads it anew."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark = spark
        self._table = table

    def look(self) -> Seen:
        """What the catalog has now."""
        operations = self.load().operations()
        return Seen(operations, operations.refresh())

    def load(self) -> Any:  # noqa: ANN401 - Iceberg's `Table`
        """The table, which must be there."""
        util = jvm(self._spark).org.apache.iceberg.spark.Spark3Util
        return util.loadIcebergTable(java_session(self._spark), self._table)

    def allow_staging(self) -> None:
        """Let snapshots be written that nobody sees yet; a change of a property, made once."""
        table = self.load()
        if str(dict(table.properties()).get(_STAGING, "false")).lower() != "true":
            table.updateProperties().set(_STAGING, "true").commit()

    def add_columns(self, frame: DataFrame) -> None:
        """Let the table have what rows have, at any depth; nothing is changed where it does.

        Raises:
            SPARK_ERRORS: a column has another type, and its values would not fit.
        """
        convert = jvm(self._spark).org.apache.iceberg.spark.SparkSchemaUtil.convert
        schema = convert(frame._jdf.schema())  # noqa: SLF001 -- PySpark has no other way to Java
        self.load().updateSchema().unionByNameWith(schema).commit()

    def progress(self, seen: Seen) -> Progress | None:
        """What the last snapshot of ours says, of those that the shown one comes from.

        Raises:
            LostProgressError: none does, and older snapshots have expired.
        """
        found = last_progress(self._said(seen), lambda commit: self._tagged(seen, commit))
        if found is None:
            self._require_whole(seen)
        return found

    def _said(self, seen: Seen) -> Iterator[Progress | Changes | None]:
        for snapshot in _ancestors(seen.metadata):
            where = f"{self._table}: the snapshot {snapshot.snapshotId()}"
            yield from_properties(_summary(snapshot), where)

    def _tagged(self, seen: Seen, commit: str) -> Progress | None:
        """The state in the tagged snapshot, where it is of this commit: the ones between it and the
        present one may have expired.
        """
        tag = seen.metadata.ref(STATE_TAG)
        snapshot = None if tag is None else seen.metadata.snapshot(tag.snapshotId())
        if snapshot is None:
            return None
        found = from_properties(_summary(snapshot), f"{self._table}: the tag {STATE_TAG}")
        return found if isinstance(found, Progress) and found.commit == commit else None

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
        """The newest snapshot that was staged under this name; None where there is none."""
        named = [one for one in seen.metadata.snapshots() if _summary(one).get(_STAGED) == commit]
        return named[-1] if named else None

    def follows_shown(self, seen: Seen, snapshot: Any) -> bool:  # noqa: ANN401
        """Whether a staged snapshot was made from the one that is shown."""
        shown = seen.metadata.currentSnapshot()
        return bool(snapshot.parentId() == (None if shown is None else shown.snapshotId()))

    def stage_again(self, snapshot: Any, properties: Mapping[str, str]) -> None:  # noqa: ANN401
        """The same files, in a new staged snapshot that is made from the one now shown."""
        table = self.load()
        append = table.newAppend().stageOnly()
        for data_file in snapshot.addedDataFiles(table.io()):
            append = append.appendFile(data_file)
        for name, value in properties.items():
            append = append.set(name, value)
        append.commit()

    def publish(self, seen: Seen, snapshot: Any) -> bool:  # noqa: ANN401
        """Show a staged snapshot; False where the table has changed since `seen`.

        Raises:
            Py4JJavaError: anything else; it may have happened all the same.
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
        """Tag the snapshot with the whole state that this commit names; without one, no tag is
        needed.
        """
        tag = seen.metadata.ref(STATE_TAG)
        if whole is None:
            return builder if tag is None else builder.removeRef(STATE_TAG)
        named = (
            one.snapshotId()
            for one in _ancestors(seen.metadata)
            if _summary(one).get(COMMIT_KEY) == whole
        )
        found = next(named, None)
        if found is None or (tag is not None and tag.snapshotId() == found):
            return builder
        reference = jvm(self._spark).org.apache.iceberg.SnapshotRef.tagBuilder(found).build()
        return builder.setRef(STATE_TAG, reference)


def staged_properties(commit: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The summary of a snapshot that is staged by hand, as Spark's writer makes it."""
    return {_STAGED: commit, **properties}


def _ancestors(metadata: Any) -> Iterator[Any]:  # noqa: ANN401
    snapshot = metadata.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else metadata.snapshot(parent)


def _summary(snapshot: Any) -> dict[str, str]:  # noqa: ANN401
    return {str(key): str(value) for key, value in dict(snapshot.summary()).items()}
