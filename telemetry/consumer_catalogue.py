"""All metrics of a `TieredConsumer`, which are in the application's own registry."""

from typing import Final

from sidetier.telemetry.catalogue import Catalogue

_metrics: Final = Catalogue("consumer_")

# fmt: off
RECORDS: Final = _metrics.counter("records_total", "Records delivered to the application, by source: kafka or store.", "source")
BYTES: Final = _metrics.counter("bytes_total", "Bytes of delivered values, by source.", "source")
SWITCHES: Final = _metrics.counter("switches_total", "Number of times that a partition switched to the other source.", "to")
MISSES: Final = _metrics.counter("misses_total", "Times that a source did not have the next offset: deleted, never stored, or in a gap.", "source")
RESETS: Final = _metrics.counter("offset_resets_total", "Number of offset resets by auto.offset.reset.")
CLIENTS_REPLACED: Final = _metrics.counter("kafka_clients_replaced_total", "Kafka clients that were replaced because they were silent after a topic was created again.")
SKIPPED_OFFSETS: Final = _metrics.counter("skipped_offsets_total", "Offsets that neither source has and that were skipped: data loss, alert on any increase.")
PREFETCH: Final = _metrics.counter("prefetch_total", "Ranges of stored segments that were prefetched in time (hit), or not (miss).", "outcome")
FETCHED_BYTES: Final = _metrics.counter("fetched_bytes_total", "Bytes of segments read from the store.")
FALLBACKS: Final = _metrics.counter("index_fallbacks_total", "Segments that were scanned because an index is missing or damaged.")
# fmt: on

CONSUMER_METRICS: Final = _metrics.declared
"""All of the above, in order. The consumer also exports `store_request_seconds` and
`store_retries_total` of the sidecar's catalogue.
"""
