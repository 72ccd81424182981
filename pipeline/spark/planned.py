"""Plans of batch reads, on the driver. Independent of Spark."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from sidetier.pipeline.errors import describe_missing
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.planning.split import Missing, Plan
from sidetier.pipeline.spark.settings import ReadSettings, opened

log = logging.getLogger("sidetier.pipeline")


def plan_batch(settings: ReadSettings, filters: Filters | None = None) -> Plan:
    """Plan a batch read. Missing offsets are logged where they are not an error.

    Raises:
        MissingRecordsError, NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as
            `Planner.plan`.
    """
    request = settings.request
    if filters is not None:
        request = replace(request, filters=filters)
    with Planner(opened(settings.place), max_batch_bytes=settings.max_batch_bytes) as planner:
        plan = planner.plan(request)
    warn_of(plan.missing)
    return plan


def warn_of(missing: Sequence[Missing]) -> None:
    """Log offsets that are skipped."""
    for gap in missing:
        log.warning("not stored, and left out: %s", describe_missing(gap))
