"""Reading the cluster's state without a broker."""

import pytest

from sidetier.leadership.cluster_state import KafkaClusterState
from sidetier.segments.cluster_state import SnapshotKind
from sidetier.segments.errors import LeadershipUnavailableError


@pytest.mark.parametrize("kind", [SnapshotKind.GROUP_OFFSETS, SnapshotKind.QUOTAS])
def test_a_property_that_only_librdkafka_supports_is_named(kind: SnapshotKind) -> None:
    """Group offsets are not read through librdkafka, which can crash while a coordinator loads."""
    properties = {"socket.nagle.disable": "true"}
    source = KafkaClusterState("127.0.0.1:9", properties, pause=lambda _: False, timeout=0.1)
    with pytest.raises(LeadershipUnavailableError) as raised:
        source.read(kind, None, 0.0)
    text = str(raised.value)
    assert text.startswith(f"{kind}: broker.client: ")
    assert "socket.nagle.disable" in text
    assert f"list {kind} in uploader.cluster_snapshots.exclude" in text
