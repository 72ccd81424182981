"""The results of the steps of a pass of local retention.

This module imports no other part of local retention, because the event loop needs it also in a
sidecar without local retention.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidetier.uploader.trim.archive_check import LedPartition
    from sidetier.uploader.trim.decision import Trim
    from sidetier.uploader.trim.trimmer import Survey


@dataclass(frozen=True, slots=True)
class SurveyEnded:
    """The logs are surveyed."""

    survey: "Survey"


@dataclass(frozen=True, slots=True)
class ArchivesVerified:
    """The archives of some partitions are verified."""

    trims: "Sequence[tuple[LedPartition, Trim]]"


@dataclass(frozen=True, slots=True)
class RecordsDeleted:
    """The broker has answered about some partitions."""

    trims: "Sequence[Trim]"


@dataclass(frozen=True, slots=True)
class PassFailed:
    """A step of the pass has raised an error."""

    error: Exception


LocalRetentionEvent = SurveyEnded | ArchivesVerified | RecordsDeleted | PassFailed
