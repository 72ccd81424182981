from typing import Any

import pytest

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.export.errors import (
    LogTruncatedError,
    NotCommittedError,
    OtherTopicError,
    ReadingsDifferError,
    RefusedRowsError,
)
from sidetier.pipeline.export.run import should_retry
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    SidetierError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.diverged_archive import before_the_election, elect_uncleanly
from tests.harness.made_archive import TP, MadeArchive, access_to

REPLACED = ArchiveReplacedError("set aside", Offset(24))
MISSING = MissingRecordsError([])


class Seen(Planner):
    """A planner that has seen an archive; `renew` finds the given changes."""

    def __init__(self, found: bool | SidetierError) -> None:  # noqa: FBT001
        super().__init__(access_to(FakeStorage()), threads=1)
        self.found = found
        self.asked = 0

    def renew(self) -> dict[TopicPartition, Offset]:
        self.asked += 1
        if isinstance(self.found, SidetierError):
            raise self.found
        return {TP: Offset(24)} if self.found else {}


@pytest.mark.parametrize(
    ("error", "found", "again", "asked"),
    [
        (REPLACED, True, True, 1),
        (REPLACED, False, True, 1),
        (REPLACED, StoreTimeoutError("late"), True, 1),
        (MISSING, True, True, 1),
        (MISSING, False, False, 1),
        (MISSING, StoreUnavailableError("away"), True, 1),
        (MISSING, ObjectNotFoundError("gone"), False, 1),
        (ObjectNotFoundError("gone"), True, True, 1),
        (ObjectNotFoundError("gone"), False, False, 1),
        (ReadingsDifferError("differ"), True, True, 1),
        (ReadingsDifferError("differ"), False, False, 1),
        (NotCommittedError("a task has failed"), False, True, 1),
        (RefusedRowsError("other columns"), False, False, 1),
        (StoreUnavailableError("away"), True, True, 0),
        (LogTruncatedError([], "reread"), True, False, 0),
        (OtherTopicError("another"), True, False, 0),
        (ConfigurationError("wrong"), True, False, 0),
    ],
)
def test_only_errors_that_can_pass_are_retried(
    error: SidetierError,
    found: bool | SidetierError,  # noqa: FBT001
    again: bool,  # noqa: FBT001
    asked: int,
) -> None:
    with Seen(found) as planner:
        assert should_retry(error, planner, dict) is again
        assert planner.asked == asked


@pytest.mark.parametrize(("known_from", "again"), [(20, True), (24, True), (25, False)])
@pytest.mark.parametrize("error", [REPLACED, MISSING])
def test_divergence_that_no_later_round_would_detect_is_not_retried(
    error: SidetierError,
    known_from: int,
    again: bool,  # noqa: FBT001
) -> None:
    with Seen(found=True) as planner:
        assert should_retry(error, planner, lambda: {TP: Offset(known_from)}) is again


def test_archive_is_not_renewed_before_the_exported_offsets_are_known() -> None:
    def unknown() -> dict[TopicPartition, Offset]:
        raise StoreUnavailableError("away")

    with Seen(found=True) as planner:
        assert should_retry(REPLACED, planner, unknown)
        assert planner.asked == 0


def test_planner_plans_again_with_the_current_archive() -> None:
    archive: Any = MadeArchive()
    before_the_election(archive)
    with Planner(access_to(archive.store), threads=1) as planner:
        assert planner.starts([TP]) == {TP: 0}
        assert planner.renew() == {}
        elect_uncleanly(archive)
        with pytest.raises(ArchiveReplacedError):
            planner.starts([TP])
        assert planner.renew() == {TP: 20}, "where the segment begins that was cut"
        assert planner.starts([TP]) == {TP: 0}
        assert planner.epoch_histories([TP])[TP].entries[-1] == (4, 24)
        assert planner.renew() == {}
