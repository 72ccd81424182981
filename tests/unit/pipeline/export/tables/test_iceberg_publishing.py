"""Publishing a snapshot, on a catalog in memory, with all interleavings of other writers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sidetier.pipeline.export.errors import (
    CommitTimedOutError,
    NotCommittedError,
    OtherWriterError,
    RecordCountError,
)
from sidetier.pipeline.export.sinks.tables.cancelling import Watch
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    Progress,
    from_properties,
    to_properties,
)
from sidetier.pipeline.export.sinks.tables.iceberg import IcebergOptions, IcebergTable
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition

A = TopicPartition("t", 0)


def progress(since: int, until: int, commit: str) -> Progress:
    return Progress(
        "prod-a",
        IsolationLevel.READ_COMMITTED,
        {A: Offset(until)},
        {A: Offset(since)} if since else {},
        commit,
    )


@dataclass(frozen=True)
class Snapshot:
    parent: "Snapshot | None"
    properties: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0


@dataclass
class Catalog:
    """Stand in for `IcebergMetadata`; `meanwhile` happens right before a publication."""

    shown: Snapshot | None = None
    waiting: list[Snapshot] = field(default_factory=list)
    meanwhile: list[Snapshot | None] = field(default_factory=list)

    def refresh(self) -> Snapshot | None:
        return self.shown

    def progress(self, seen: Snapshot | None) -> Progress | None:
        while seen is not None:
            found = from_properties(seen.properties, "snapshot")
            if isinstance(found, Progress):
                return found
            seen = seen.parent
        return None

    def stage(self, made: Progress, rows: int = 5) -> None:
        self.waiting.append(Snapshot(self.shown, to_properties(made), rows))

    def added_rows(self, snapshot: Snapshot) -> int:
        return snapshot.rows

    def staged(self, _seen: object, commit: str) -> Snapshot | None:
        named = [one for one in self.waiting if one.properties["sidetier.commit"] == commit]
        return named[-1] if named else None

    def follows_shown(self, seen: object, snapshot: Snapshot) -> bool:
        return snapshot.parent is seen

    def stage_again(self, snapshot: Snapshot, properties: Mapping[str, str]) -> None:
        assert dict(properties).items() >= dict(snapshot.properties).items()
        self.waiting.append(replace(snapshot, parent=self.shown))

    def publish(self, seen: object, snapshot: Snapshot) -> bool:
        if self.meanwhile:
            faster = self.meanwhile.pop(0)
            self.shown = self.shown if faster is None else replace(faster, parent=self.shown)
        if self.shown is not seen:
            return False
        self.shown = snapshot
        return True


def publish(catalog: Any, made: Progress, watch: Watch | None = None) -> None:  # noqa: ANN401
    table = IcebergTable.__new__(IcebergTable)
    table._options = IcebergOptions("lake.db.t")
    table._metadata = catalog
    table._publish(made, watch or Watch(), 5)


@pytest.mark.parametrize("rows", [0, 4, 6])
def test_snapshot_without_all_rows_is_not_published(rows: int) -> None:
    catalog, made = Catalog(), progress(0, 5, "c1")
    catalog.stage(made, rows)
    with pytest.raises(RecordCountError, match=f"returned 5 rows, and the commit has {rows}"):
        publish(catalog, made)
    assert catalog.shown is None


def test_snapshot_that_follows_the_current_one_is_published() -> None:
    catalog, made = Catalog(), progress(0, 5, "c1")
    catalog.stage(made)
    publish(catalog, made)
    assert catalog.progress(catalog.shown) == made


def test_snapshot_overtaken_by_other_commits_is_staged_again() -> None:
    catalog, made = Catalog(), progress(0, 5, "c1")
    catalog.stage(made)
    catalog.meanwhile = [Snapshot(None, {"operation": "replace"}), Snapshot(None)]
    publish(catalog, made)
    assert catalog.progress(catalog.shown) == made
    assert catalog.shown is not None
    assert catalog.shown.parent is not None
    assert catalog.shown.parent.parent is not None
    assert catalog.shown.parent.parent.properties == {"operation": "replace"}


def test_commit_of_another_export_wins() -> None:
    catalog, made = Catalog(), progress(0, 5, "c1")
    catalog.stage(made)
    theirs = progress(0, 4, "other")
    catalog.meanwhile = [Snapshot(None, to_properties(theirs))]
    with pytest.raises(OtherWriterError):
        publish(catalog, made)
    assert catalog.progress(catalog.shown) == theirs


def test_publishing_gives_up_on_a_constantly_changing_table() -> None:
    catalog, made = Catalog(), progress(0, 5, "c1")
    catalog.stage(made)
    catalog.meanwhile = [Snapshot(None)] * 100
    with pytest.raises(NotCommittedError, match="20 times in a row"):
        publish(catalog, made)
    assert catalog.progress(catalog.shown) is None


def test_expired_staged_snapshot_is_an_error() -> None:
    with pytest.raises(NotCommittedError, match="staged snapshot of the commit c1 has expired"):
        publish(Catalog(), progress(0, 5, "c1"))


def test_nothing_is_published_after_the_timeout() -> None:
    catalog, made = Catalog(), progress(0, 5, "c1")
    catalog.stage(made)
    with pytest.raises(CommitTimedOutError, match="it took too long"):
        publish(catalog, made, Watch("it took too long"))
    assert catalog.shown is None
