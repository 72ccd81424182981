"""What Kafka and the store hold together, as one log."""

from sidetier.consumer.client.sources import Mode, Span


def bounds(mode: Mode, kafka: Span | None, stored: Span | None) -> Span:
    """The first offset that can be read, and the one that will be written next.

    Args:
        mode: with TIERED_STORAGE_ONLY the store's alone.
        kafka: None where it was not asked.
        stored: None where nothing is.
    """
    spans = [stored] if mode is Mode.TIERED_STORAGE_ONLY else [kafka, stored]
    known = [span for span in spans if span is not None]
    if not known:
        return Span(0, 0)
    return Span(min(span.start for span in known), max(span.end for span in known))


def first_of(*offsets: int | None) -> int | None:
    """The first record with a timestamp or a later one, of what each side has found (None: none).

    Either side gives the first one that it holds, and what both hold is the same log.
    """
    found = [offset for offset in offsets if offset is not None and offset >= 0]
    return min(found, default=None)
