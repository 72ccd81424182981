"""Tail packs of the active segments of a real broker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness.archive_objects import ArchiveStore
from tests.harness.sidecar import Sidecar, merged
from tests.harness.topics import watermark_offsets
from tests.harness.waiting import wait_until


def store_tails(
    directory: Path,
    settings: Mapping[str, Any],
    store: ArchiveStore,
    bootstrap: str,
    topic: str,
    partitions: int,
) -> list[int]:
    """Run a sidecar until packs have the ends of the partitions; return these ends."""
    ends = [watermark_offsets(bootstrap, topic, number)[1] for number in range(partitions)]
    tailed = merged(settings, {"uploader": {"tail": {"interval": "1s"}}})
    with Sidecar(directory, tailed, store) as sidecar:

        def are_stored() -> bool:
            rows = {row["partition"]: row["safe_to"] for row in sidecar.partitions(topic)}
            return all((rows.get(number) or 0) >= end for number, end in enumerate(ends))

        wait_until(are_stored, 120, "packs with the ends of the partitions")
    return ends
