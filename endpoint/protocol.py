"""The requests that the endpoint answers, and the versions of each.

A client uses the highest version that both sides know, so each listed version must be answered.
What is not listed here does not exist for clients:

- DescribeTopicPartitions (75) is left out: Java's Admin then uses Metadata, and would fail on the
  null that a broker may send as `eligible_leader_replicas`.
- Produce must be listed, although it is refused: librdkafka reads nothing from a server without it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from sidetier.wire.protocol import ApiKey, build_response

OFFERED: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (3, 13),
        ApiKey.FETCH: (4, 17),
        ApiKey.LIST_OFFSETS: (1, 10),
        ApiKey.METADATA: (0, 13),
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.INIT_PRODUCER_ID: (0, 5),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
        ApiKey.DESCRIBE_CONFIGS: (1, 4),
        ApiKey.DESCRIBE_CLUSTER: (0, 2),
    }
)
"""Lowest and highest version of each request, inclusive, without those of groups."""

Offered = Mapping[ApiKey, tuple[int, int]]


def offered_api(offered: Offered, api_key: int, version: int) -> ApiKey | None:
    """Return the request of this number if this version of it is answered, else None."""
    try:
        api = ApiKey(api_key)
    except ValueError:
        return None
    lowest, highest = offered.get(api, (0, -1))
    return api if lowest <= version <= highest else None


def api_versions_response(offered: Offered, version: int) -> tuple[int, ResponsePayload]:
    """Return the version in which to answer ApiVersions, and the answer.

    A client asks before it knows which versions the server has. If it asks in a version above ours,
    it gets error 35 in version 0, which every client can read (KIP-511).
    """
    is_known = offered_api(offered, ApiKey.API_VERSIONS, version) is not None
    answered = version if is_known else 0
    error = ErrorCode.none if is_known else ErrorCode.unsupported_version
    return answered, build_response(
        ApiKey.API_VERSIONS,
        answered,
        error_code=error,
        api_keys=[
            {"api_key": int(api), "min_version": lowest, "max_version": highest}
            for api, (lowest, highest) in sorted(offered.items())
        ],
        throttle_time=0,
    )
