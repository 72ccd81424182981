"""Reading a Hudi timeline, with a manual timeline that has commits rarely found in real tables."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sidetier.pipeline.export.errors import LostProgressError
from sidetier.pipeline.export.sinks.tables.commit_metadata import Progress, to_properties
from sidetier.pipeline.export.sinks.tables.hudi import Timeline
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition

OURS = Progress(
    "prod-a", IsolationLevel.READ_COMMITTED, {TopicPartition("t", 0): Offset(5)}, {}, "c1"
)


@dataclass
class Instant:
    """Like Hudi's `HoodieInstant`, with the extra metadata of its commit."""

    extra: dict[str, str]
    action: str = "commit"
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def fetchTotalInsertRecordsWritten(self) -> int:  # noqa: N802
        return self.inserted

    def getTotalRecordsDeleted(self) -> int:  # noqa: N802
        return self.deleted

    def fetchTotalUpdateRecordsWritten(self) -> int:  # noqa: N802
        return self.updated

    def getAction(self) -> str:  # noqa: N802 - Hudi's names, here and below
        return self.action

    def requestedTime(self) -> str:  # noqa: N802
        return "20261121"

    def getExtraMetadata(self) -> dict[str, str]:  # noqa: N802
        return self.extra


@dataclass
class Option:
    """Like Hudi's `Option`."""

    value: Instant | None

    def isPresent(self) -> bool:  # noqa: N802
        return self.value is not None

    def get(self) -> Instant | None:
        return self.value


@dataclass
class Instants:
    """Like Hudi's `HoodieTimeline`."""

    oldest_first: list[Instant] = field(default_factory=list)

    def getReverseOrderedInstants(self) -> "Instants":  # noqa: N802
        return Instants(self.oldest_first[::-1])

    def toArray(self) -> list[Instant]:  # noqa: N802
        return self.oldest_first

    def lastInstant(self) -> Option:  # noqa: N802
        return Option(self.oldest_first[-1] if self.oldest_first else None)

    def readCommitMetadata(self, instant: Instant) -> Instant:  # noqa: N802
        assert instant.action != "replacecommit", "its metadata has another form"
        return instant

    def empty(self) -> bool:
        return not self.oldest_first

    def getCommitsTimeline(self) -> "Instants":  # noqa: N802
        return self

    def filterCompletedInstants(self) -> "Instants":  # noqa: N802
        return self


@dataclass
class Meta:
    """Like Hudi's `HoodieTableMetaClient`."""

    active: Instants
    archived: Instants = field(default_factory=Instants)

    def getActiveTimeline(self) -> Instants:  # noqa: N802
        return self.active

    def getArchivedTimeline(self) -> Instants:  # noqa: N802
        return self.archived


def timeline(meta: Meta) -> Timeline:
    class Made(Timeline):
        def meta_client(self) -> Meta:
            return meta

    return Made(cast("Any", None), "file:///lake/t")


def test_commits_of_other_writers_and_clustering_are_skipped() -> None:
    others = [Instant({"mine": "1"}), Instant({}, "replacecommit"), Instant({}, "deltacommit")]
    made = timeline(Meta(Instants([Instant(to_properties(OURS)), *others])))
    assert made.progress() == OURS


def test_rows_of_a_commit_are_inserts_and_updates() -> None:
    other = Instant({"mine": "1"}, inserted=9)
    ours = Instant(to_properties(OURS), "deltacommit", inserted=2, updated=3, deleted=1)
    made = timeline(Meta(Instants([other, ours, Instant({}, "replacecommit"), other])))
    assert made.rows_of("c1") == (5, 1)
    assert made.rows_of("c2") == (0, 0)


def test_table_with_only_commits_of_other_writers_has_no_progress() -> None:
    assert timeline(Meta(Instants([Instant({})]))).progress() is None


def test_archived_history_does_not_restart_the_export() -> None:
    meta = Meta(Instants([Instant({})]), archived=Instants([Instant({})]))
    with pytest.raises(LostProgressError, match="older ones were archived"):
        timeline(meta).progress()


def test_table_of_hudis_own_sink_is_refused_with_its_offsets() -> None:
    meta = Meta(Instants([Instant({"kafka.commit.offsets": "0=12,1=7"})]))
    with pytest.raises(LostProgressError, match=r"offsets 0=12,1=7.*--starting-offsets"):
        timeline(meta).progress()
