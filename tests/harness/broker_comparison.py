"""The answers of an endpoint, compared byte for byte with those of a real broker."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sidetier.wire.protocol import ApiKey, decode_response, encode
from tests.harness.endpoint import RawClient


class Difference(NamedTuple):
    """A field in which the endpoint's answer differs from a broker's, on purpose.

    Attributes:
        api: The request.
        path: Names of the field and of those around it.
        value: What the endpoint answers.
        why: Reason.
    """

    api: ApiKey
    path: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Pair:
    """An endpoint, and a broker that has the same records.

    Attributes:
        endpoint: Client of the endpoint.
        broker: Client of the broker.
        differences: Fields that differ on purpose.
        offered: Lowest and highest version of each request that the endpoint offers.
        known: The same of the broker.
    """

    endpoint: RawClient
    broker: RawClient
    differences: Sequence[Difference]
    offered: Mapping[ApiKey, tuple[int, int]]
    known: Mapping[ApiKey, tuple[int, int]]

    def versions(self, api: ApiKey) -> range:
        """Return the versions that both sides have."""
        return range(
            max(self.offered[api][0], self.known[api][0]),
            min(self.offered[api][1], self.known[api][1]) + 1,
        )

    def compare(self, api: ApiKey, version: int, *more: Difference, **values: Any) -> Any:  # noqa: ANN401 - kio's
        """Send the same request to both, and check that the answers are equal.

        The broker's answer gets the endpoint's values of the fields that differ on purpose. All
        other bytes must be equal.

        Returns:
            The endpoint's answer, decoded.
        """
        theirs_raw = self.broker.exchange(api, version, **values)
        ours_raw = self.endpoint.exchange(api, version, **values)
        theirs = decode_response(api, version, memoryview(theirs_raw), "broker")
        assert encode(theirs) == theirs_raw, "this version of the answer is not fully decoded"
        for difference in (*self.differences, *more):
            if difference.api is api:
                theirs = _replaced(theirs, difference.path.split("."), difference.value)
        if api is ApiKey.METADATA:  # a broker's order is that of a hash table
            theirs = _sorted_metadata(theirs)
        ours = decode_response(api, version, memoryview(ours_raw), "endpoint")
        assert ours == theirs, (version, values)
        assert ours_raw == encode(theirs), (version, values)
        return ours


def known_versions_of(client: RawClient) -> dict[ApiKey, tuple[int, int]]:
    """Return the versions that a server announces, of the requests that Sidetier knows."""
    answer: Any = client.request(ApiKey.API_VERSIONS, 0)
    known = {int(api) for api in ApiKey}
    return {
        ApiKey(row.api_key): (row.min_version, row.max_version)
        for row in answer.api_keys
        if row.api_key in known
    }


@contextmanager
def pair_of(
    endpoint: str,
    broker: str,
    differences: Sequence[Difference],
) -> Iterator[Pair]:
    """Yield clients of both, from their addresses."""
    with RawClient(_address(endpoint)) as ours, RawClient(_address(broker)) as theirs:
        offered, known = known_versions_of(ours), known_versions_of(theirs)
        yield Pair(ours, theirs, differences, offered, known)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _replaced(entity: Any, path: Sequence[str], value: object) -> Any:  # noqa: ANN401 - kio's
    """Return the entity with another value of a field; unchanged if it has no such field."""
    name, *rest = path
    if not hasattr(entity, name):
        return entity
    if rest:
        inner = getattr(entity, name)
        value = (
            tuple(_replaced(item, rest, value) for item in inner)
            if isinstance(inner, tuple)
            else _replaced(inner, rest, value)
        )
    return replace(entity, **{name: value})


def _sorted_metadata(answer: Any) -> Any:  # noqa: ANN401 - kio's
    topics = [
        replace(
            topic, partitions=tuple(sorted(topic.partitions, key=lambda row: row.partition_index))
        )
        for topic in answer.topics
    ]
    return replace(answer, topics=tuple(sorted(topics, key=lambda topic: topic.name or "")))
