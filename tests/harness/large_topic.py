"""A topic that is larger than the buffers of sockets, and clients that do not read the answers."""

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from sidetier.segments import offsets
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.port import RemoteStorage
from sidetier.wire.protocol import ApiKey, build_request, encode, encode_header
from tests.harness.endpoint import fetch_of
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.served_archive import Served

TOPIC = "large"
EACH = 64
"""Records in each segment."""
_REQUESTS = 5
_MOST = 16 << 20


def store_large(store: RemoteStorage, layout: ArchiveLayout, segments: int) -> None:
    """Store the topic: segments of 4 MiB, with records of 65 kB, each in a batch of its own."""
    large = MadeArchive(store, layout, offsets.TopicPartition(TOPIC, 0))
    for first in range(0, segments * EACH, EACH):
        records = [MadeRecord(first + row, value=bytes([row]) * 65_000) for row in range(EACH)]
        large.segment(first, [MadeBatch((record,)) for record in records])
    large.mark((segments - 1) * EACH, segments * EACH)


@contextmanager
def slow_clients(served: Served, starts: Iterable[int]) -> Iterator[None]:
    """Keep a client for each of these offsets that asks for up to 16 MiB five times.

    They read nothing of the answers, and are closed when the block ends.
    """
    with ExitStack() as stack:
        for start in starts:
            client = stack.enter_context(socket.create_connection(served.address, 20))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asked = fetch_of(TOPIC, start, max_bytes=_MOST, partition_max_bytes=_MOST)
            frame = encode_header(ApiKey.FETCH, 11, 1, "slow")
            frame += encode(build_request(ApiKey.FETCH, 11, **asked))
            client.sendall((struct.pack(">i", len(frame)) + frame) * _REQUESTS)
        yield
