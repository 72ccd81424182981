"""Export the counts of a mirror's worker to Prometheus."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sidetier.mirror.copy.engine import Counts, PartitionLag
from sidetier.mirror.offsets.offset_sync import OffsetSyncCounts
from sidetier.telemetry import mirror_catalogue as catalogue
from sidetier.telemetry.catalogue import Metric
from sidetier.telemetry.instruments import family


class MirrorCollector(Collector):
    """Reads the worker's counts at each scrape.

    Args:
        counts: The counts of one engine.
        offset_sync: The counts of the same worker's `OffsetSync`; None if it neither sets groups
            nor stores its map.
        now_ms: Returns the wall clock in milliseconds since 1970, for the lag in seconds.
        refused: Returns the topics that are left out now, each with the reason.
    """

    def __init__(
        self,
        counts: Counts,
        offset_sync: OffsetSyncCounts | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        refused: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._counts = counts
        self._offset_sync = offset_sync or OffsetSyncCounts()
        self._refused = refused
        self._now_ms = now_ms

    def collect(self) -> Iterator[Family]:
        """Yield every metric of `telemetry.mirror_catalogue`."""
        counts, offset_sync = self._counts, self._offset_sync
        for metric, value in (
            (catalogue.RECORDS, counts.records),
            (catalogue.BYTES, counts.bytes),
            (catalogue.DROPPED_RECORDS, counts.dropped_records),
            (catalogue.REENCODED_BATCHES, counts.reencoded_batches),
            (catalogue.TRANSACTIONS, counts.transactions),
            (catalogue.ABORTS, counts.aborts),
            (catalogue.TRANSACTION_SECONDS, counts.transaction_seconds),
            (catalogue.COMMIT_SECONDS, counts.commit_seconds),
            (catalogue.GROUP_OFFSETS_SET, offset_sync.group_offsets_set),
            (catalogue.MAPS_STORED, offset_sync.maps_stored),
            (catalogue.OFFSET_SYNC_FAILURES, offset_sync.failures),
            (catalogue.GAP_RECORDS, sum(gap.end - gap.start for gap in list(counts.gaps))),
            (catalogue.REFUSED_TOPICS, len(self._refused())),
            (catalogue.LEFT_OUT_PARTITIONS, len(counts.left_out)),
            (catalogue.LATENCY, counts.newest_latency),
            (catalogue.GROUPS_TRANSLATED, offset_sync.groups_translated),
            (catalogue.GROUPS_WITH_MEMBERS, offset_sync.groups_with_members),
            (catalogue.OFFSETS_SYNCED, offset_sync.synced_at),
        ):
            yield family(metric, [((), value)])
        yield self._by_partition(catalogue.LAG_RECORDS, lambda lag: lag.records)
        yield self._by_partition(catalogue.LAG_SECONDS, self._lag_seconds)

    def _by_partition(self, metric: Metric, value: Callable[[PartitionLag], float]) -> Family:
        lags = list(self._counts.lags.items())  # a copy, because the engine changes it meanwhile
        return family(metric, [((tp.topic, str(tp.partition)), value(lag)) for tp, lag in lags])

    def _lag_seconds(self, lag: PartitionLag) -> float:
        if lag.records == 0 or lag.newest_timestamp < 0:
            return 0.0
        return max((self._now_ms() - lag.newest_timestamp) / 1000, 0.0)
