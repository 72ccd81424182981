"""The versions of requests that each release of Kafka knows, as its brokers answer ApiVersions.

`test_serve_live_releases.py` compares them with real brokers.
"""

from collections.abc import Mapping
from typing import Final

from sidetier.brokers.kafka import (
    KAFKA_2_8,
    KAFKA_3_3,
    KAFKA_3_6,
    KAFKA_3_9,
    KAFKA_4_0,
    KAFKA_4_3,
)
from sidetier.wire.protocol import ApiKey

Versions = Mapping[ApiKey, tuple[int, int]]

_LIVE: Final = (
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
)


def _versions(*ranges: tuple[int, int]) -> Versions:
    return dict(zip(_LIVE, ranges, strict=True))


VERSIONS: Final[Mapping[str, Versions]] = {
    KAFKA_2_8: _versions((0, 12), (0, 6), (0, 11), (0, 4)),
    KAFKA_3_3: _versions((0, 13), (0, 7), (0, 12), (0, 4)),
    KAFKA_3_6: _versions((0, 15), (0, 8), (0, 12), (0, 4)),
    KAFKA_3_9: _versions((0, 17), (0, 9), (0, 12), (0, 4)),
    KAFKA_4_0: _versions((4, 17), (1, 10), (0, 13), (2, 4)),
    KAFKA_4_3: _versions((4, 18), (1, 11), (0, 13), (2, 4)),
}
"""The requests to leaders of `sidetier serve --live`, by release."""
