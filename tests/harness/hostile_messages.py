"""Encoded requests and responses of Kafka's protocol in which one count or length is a lie.

The bytes are written here from kio's schemas, without `sidetier.wire`. They are decoded by a
process of its own with little memory, so that a reservation that follows a lie ends that process,
and not the test.
"""

import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields
from typing import Any, Final

from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    is_optional,
)

from sidetier.segments.errors import MalformedRequestError, MalformedResponseError
from sidetier.wire.protocol import ApiKey, decode_request, decode_response, encode_header

_SIZES: Final = {
    "bool": 1,
    "datetime_i64": 8,
    "error_code": 2,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "uuid": 16,
}
_ENTRIES: Final = 2
_TEXT: Final = b"ab"
_MEMORY: Final = 64 << 20
"""Bytes that the process may use beyond those that it has at its start."""
_CASE = struct.Struct(">?hhi")  # is a request, api, version, size

Announce = Callable[[str, int], int]
"""Gets a name and the right number; returns the one that is written."""


def honest(_name: str, number: int) -> int:
    """Announce what follows."""
    return number


@dataclass
class Lie:
    """Announces `number` in place of the announcement with this position.

    Attributes:
        position: Of all announcements of the message; beyond the last one for no lie.
        number: What is announced. A count of -1 is null.
        name: Name of the field, once the message is encoded.
        made: Number of announcements so far.
    """

    position: int
    number: int
    name: str = ""
    made: int = 0

    def __call__(self, name: str, number: int) -> int:
        self.made += 1
        if self.made - 1 != self.position:
            return number
        self.name = name
        return self.number


def varint(value: int) -> bytes:
    """Return the unsigned varint of the lowest 32 bits."""
    value &= 0xFFFFFFFF
    encoded = b""
    while value > 0x7F:
        encoded += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return encoded + bytes((value,))


def encoded(entity_type: type[Any], announce: Announce = honest, unknown: bytes = b"") -> bytes:
    """Return an entity in which each array has two entries, and each tagged field is there.

    Args:
        entity_type: The class of kio.
        announce: Chooses what is announced.
        unknown: Contents of an unknown tagged field of each entity; empty for none.
    """
    data, tags = b"", []
    flexible = entity_type.__flexible__
    for each in fields(entity_type):
        name = f"{entity_type.__name__}.{each.name}"
        tag = get_field_tag(each)
        value = _field(name, each, announce, unknown, flexible=flexible, tagged=tag is not None)
        if tag is None:
            data += value
        else:
            size = announce(f"{name}, size", len(value))
            tags.append(varint(int(tag)) + varint(size) + value)
    if not flexible:
        return data
    if unknown:
        tags.append(varint(77) + varint(len(unknown)) + unknown)
    return data + varint(announce(f"{entity_type.__name__}, tags", len(tags))) + b"".join(tags)


def _field(
    name: str,
    each: "Field[Any]",
    announce: Announce,
    unknown: bytes,
    *,
    flexible: bool,
    tagged: bool,
) -> bytes:
    kind, kafka_type = classify_field(each), each.metadata.get("kafka_type", "")

    def single(announce: Announce) -> bytes:
        if isinstance(kind, EntityField | EntityTupleField):
            return encoded(kind.type_, announce, unknown)
        if kafka_type in _SIZES:
            return bytes(_SIZES[kafka_type])
        size = announce(name, len(_TEXT))
        if flexible:
            return varint(size + 1) + _TEXT
        legacy = ">h" if kafka_type == "string" else ">i"
        return _signed(legacy, size) + _TEXT

    if isinstance(kind, EntityTupleField | PrimitiveTupleField):
        count = announce(f"{name}[]", _ENTRIES)
        head = varint(count + 1) if flexible else _signed(">i", count)
        return head + single(announce) + single(honest) * (_ENTRIES - 1)
    if isinstance(kind, EntityField) and is_optional(each) and not tagged:
        return b"\x01" + single(announce)
    return single(announce)


def _signed(layout: str, number: int) -> bytes:
    bits = 8 * struct.calcsize(layout)
    return struct.pack(layout, (number + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)))


def frame_of(api: ApiKey, version: int, body: bytes) -> bytes:
    """Return a request with its header, without its size."""
    return encode_header(api, version, 1, "client") + body


class LimitedDecoder:
    """Decodes messages in a process with little memory."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def decodes(self, api: ApiKey, version: int, data: bytes, *, is_request: bool) -> bool:
        """Return whether a message can be decoded; False if it is refused as malformed.

        Raises:
            AssertionError: The process has ended, or decoding has raised another error.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_CASE.pack(is_request, api, version, len(data)) + data)
        process.stdin.flush()
        answer = process.stdout.read(1)
        assert answer, f"{api.name} v{version} has ended the process: {data.hex()}"
        return answer == b"1"


@contextmanager
def limited_decoder() -> Iterator[LimitedDecoder]:
    """Start the process, and end it with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.harness.hostile_messages"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield LimitedDecoder(process)
        finally:
            process.kill()


def _decode(api: ApiKey, version: int, data: bytes, *, is_request: bool) -> bool:
    try:
        if is_request:
            position = len(encode_header(api, version, 1, "client"))
            # Before the tagged fields of a flexible header, which are one byte.
            position -= data[position - 1 : position] == b"\0" and frame_has_tags(api, version)
            decode_request(api, version, memoryview(data), position)
        else:
            decode_response(api, version, memoryview(data), "broker")
    except (MalformedRequestError, MalformedResponseError):
        return False
    return True


def frame_has_tags(api: ApiKey, version: int) -> bool:
    """Return whether the header of a request ends with tagged fields."""
    return len(encode_header(api, version, 1, "")) > struct.calcsize(">hhih")


def main() -> None:
    """Decode each message of the standard input; answer with one byte."""
    from kio.index import load_request_schema  # noqa: PLC0415, F401 - before the limit

    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115, PTH123
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    while head := sys.stdin.buffer.read(_CASE.size):
        is_request, api, version, size = _CASE.unpack(head)
        data = sys.stdin.buffer.read(size)
        decodes = _decode(ApiKey(api), version, data, is_request=is_request)
        sys.stdout.buffer.write(b"1" if decodes else b"0")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
