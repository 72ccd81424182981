"""All metrics of a `TieredConsumer`, which are in the application's own registry."""

from typing import Final

from sidetier.telemetry.catalogue import PREFIX, Kind, Metric

_PREFIX: Final = PREFIX + "consumer_"

RECORDS: Final = Metric(
    _PREFIX + "records_total",
    Kind.COUNTER,
    "Records delivered to the application, by source: kafka or store.",
    ("source",),
)
BYTES: Final = Metric(
    _PREFIX + "bytes_total",
    Kind.COUNTER,
    "Bytes of delivered values, by source.",
    ("source",),
)
SWITCHES: Final = Metric(
    _PREFIX + "switches_total",
    Kind.COUNTER,
    "Number of times that a partition switched to the other source.",
    ("to",),
)
MISSES: Final = Metric(
    _PREFIX + "misses_total",
    Kind.COUNTER,
    "Times that a source did not have the next offset: deleted, never stored, or in a gap.",
    ("source",),
)
RESETS: Final = Metric(
    _PREFIX + "offset_resets_total",
    Kind.COUNTER,
    "Number of offset resets by auto.offset.reset.",
)
SKIPPED_OFFSETS: Final = Metric(
    _PREFIX + "skipped_offsets_total",
    Kind.COUNTER,
    "Offsets that neither source has and that were skipped: data loss, alert on any increase.",
)
PREFETCH: Final = Metric(
    _PREFIX + "prefetch_total",
    Kind.COUNTER,
    "Ranges of stored segments that were prefetched in time (hit), or not (miss).",
    ("outcome",),
)
FETCHED_BYTES: Final = Metric(
    _PREFIX + "fetched_bytes_total", Kind.COUNTER, "Bytes of segments read from the store."
)
FALLBACKS: Final = Metric(
    _PREFIX + "index_fallbacks_total",
    Kind.COUNTER,
    "Segments that were scanned because an index is missing or damaged.",
)

CONSUMER_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All of the above, in order. The consumer also exports `store_request_seconds` and
`store_retries_total` of the sidecar's catalogue.
"""
