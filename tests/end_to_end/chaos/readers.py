"""After the verdict, segments lose their last batches on the real store: a reader notices it."""

import os
import random
from collections.abc import Iterable
from unittest.mock import patch

from sidetier.archive.access import open_archive
from sidetier.config.storage import StorageConfig
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from tests.end_to_end.chaos.ledger import Partition
from tests.harness.archive_objects import ArchiveStore
from tests.harness.cut_logs import (
    can_be_cut,
    committed_logs,
    cut_log,
    is_cut_noticed,
    offsets_read,
)


def unnoticed_cuts(
    store: ArchiveStore, layout: ArchiveLayout, partitions: Iterable[Partition], seed: int
) -> tuple[int, list[str]]:
    """Cut one segment of each partition, at the border of a batch.

    Returns:
        The number of cuts that were reported as damage, and the violations.
    """
    dice = random.Random(seed)
    noticed, problems = 0, []
    storage = StorageConfig.model_validate({**store.settings, "prefix_entropy_bits": layout.bits})
    with (
        patch.dict(os.environ, store.environment),
        open_archive(layout.cluster, storage) as archive,
    ):
        opened = archive.default_store
        for tp in (TopicPartition(*partition) for partition in partitions):
            keys = committed_logs(opened, layout, tp)
            dice.shuffle(keys)
            key = next((key for key in keys if can_be_cut(opened, key)), None)
            if key is None:
                continue
            whole = list(offsets_read(opened, layout, tp))
            cut_log(opened, key)
            try:
                noticed += is_cut_noticed(opened, layout, tp, key, whole)
            except AssertionError as error:
                problems.append(f"{tp}: {error}")
    return noticed, problems
