"""Writes a metadata log as a KRaft broker does: records, batches, segments and snapshots."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.batches import make_batch

CONTROL = 0b10_0000
LEADER_TAG = 1


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint: seven bits per byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> bytes:
    """Encode a signed varint; -1 is one byte."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def tagged(fields: dict[int, bytes]) -> bytes:
    """Encode the tagged fields at the end of a structure."""
    body = b"".join(uvarint(tag) + uvarint(len(raw)) + raw for tag, raw in sorted(fields.items()))
    return uvarint(len(fields)) + body


def frame(api_key: int, version: int, body: bytes) -> bytes:
    """Encode a metadata record's value."""
    return uvarint(1) + uvarint(api_key) + uvarint(version) + body


def int32s(values: Sequence[int]) -> bytes:
    """Encode a compact array of int32."""
    return uvarint(len(values) + 1) + b"".join(struct.pack(">i", value) for value in values)


def topic(name: str, topic_id: bytes) -> bytes:
    encoded = name.encode()
    return frame(2, 0, uvarint(len(encoded) + 1) + encoded + topic_id + tagged({}))


def partition(
    topic_id: bytes,
    number: int,
    leader: int,
    *,
    epoch: int = 0,
    replicas: Sequence[int] = (1, 2),
    version: int = 1,
) -> bytes:
    body = struct.pack(">i", number) + topic_id
    body += int32s(replicas) + int32s(replicas) + int32s(()) + int32s(())
    body += struct.pack(">iii", leader, epoch, 0)
    if version >= 1:
        body += uvarint(len(replicas) + 1) + bytes(16) * len(replicas)
    tags = {0: b"\x01"}
    if version >= 2:
        tags |= {1: int32s(replicas), 2: int32s(())}
    return frame(3, version, body + tagged(tags))


def partition_change(
    topic_id: bytes, number: int, leader: int | None, *, version: int = 1
) -> bytes:
    """Encode a PartitionChangeRecord. `leader` None keeps the leader and changes the ISR only."""
    tags = {0: int32s((1,)), 5: b"\x00"}
    if leader is not None:
        tags[LEADER_TAG] = struct.pack(">i", leader)
    if version >= 2:
        tags[6] = int32s((2,))
    return frame(5, version, struct.pack(">i", number) + topic_id + tagged(tags))


def remove_topic(topic_id: bytes) -> bytes:
    return frame(9, 0, topic_id + tagged({}))


def no_op() -> bytes:
    return frame(20, 0, tagged({}))


def begin_transaction(name: str = "create") -> bytes:
    return frame(23, 0, tagged({0: uvarint(len(name) + 1) + name.encode()}))


def end_transaction() -> bytes:
    return frame(24, 0, tagged({}))


def abort_transaction() -> bytes:
    return frame(25, 0, tagged({}))


def batch(base: int, values: Sequence[bytes], *, epoch: int = 1, attributes: int = 0) -> bytes:
    """Return a record batch with one record per value, null keys and no headers."""
    payload = b"".join(_record(delta, value) for delta, value in enumerate(values))
    return make_batch(base, len(values), epoch=epoch, payload=payload, attributes=attributes)


def _record(delta: int, value: bytes) -> bytes:
    body = b"\x00" + zigzag(0) + zigzag(delta) + zigzag(-1) + zigzag(len(value)) + value + zigzag(0)
    return zigzag(len(body)) + body


@dataclass(slots=True)
class MetadataLogWriter:
    """A metadata log in `<log dir>/__cluster_metadata-0`, written by a test."""

    log_dir: Path
    next_offset: int = 0
    segment: int = 0
    epoch: int = 1

    @property
    def directory(self) -> Path:
        return self.log_dir / "__cluster_metadata-0"

    @property
    def active(self) -> Path:
        return self.directory / f"{self.segment:020d}.log"

    def create(self) -> "MetadataLogWriter":
        self.directory.mkdir(parents=True)
        self.active.touch()
        return self

    def append(self, *values: bytes, attributes: int = 0) -> None:
        """Append one batch. A control batch has one value, which readers ignore."""
        with self.active.open("ab") as file:
            file.write(batch(self.next_offset, values, epoch=self.epoch, attributes=attributes))
        self.next_offset += len(values)

    def roll(self) -> None:
        self.segment = self.next_offset
        self.active.touch()

    def snapshot(self, *values: bytes) -> Path:
        """Write a snapshot of the state below the next offset, with its header and footer."""
        path = self.directory / f"{self.next_offset:020d}-{self.epoch:010d}.checkpoint"
        data = batch(0, [b"header"], attributes=CONTROL)
        if values:
            data += batch(1, values)
        path.write_bytes(data + batch(1 + len(values), [b"footer"], attributes=CONTROL))
        return path

    def clean(self) -> None:
        """Remove all segments but the active one."""
        for path in self.directory.glob("*.log"):
            if path != self.active:
                path.unlink()

    def truncate(self, size: int, next_offset: int) -> None:
        """Cut the active segment to `size` bytes, after which it ends at `next_offset`."""
        with self.active.open("r+b") as file:
            file.truncate(size)
        self.next_offset = next_offset
