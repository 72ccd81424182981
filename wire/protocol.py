"""Requests and responses of Kafka's protocol as kio's entities, and their framing.

Source: Kafka's message definitions (`clients/src/main/resources/common/message`), KIP-482 (flexible
versions, tagged fields), KIP-511 (ApiVersions).
"""

import io
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.schema.response_header.v1.header import ResponseHeader
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64
from kio.static.protocol import RequestPayload, ResponsePayload

from sidetier.segments.errors import (
    KafkaApiError,
    MalformedRequestError,
    MalformedResponseError,
)
from sidetier.wire.bounds import SchemaClass, SchemaField, check, schema_fields, skip_tagged_fields

_HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")
# 0 is equal to False, so it counts, too.
_UNSET: Final = (None, False, "", -1, ())


class ApiKey(IntEnum):
    """The requests that Sidetier sends or answers, by their api key."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69

    @property
    def title(self) -> str:
        """Name in Kafka's documentation, such as `EndTxn`."""
        return "".join(map(str.capitalize, self.name.split("_")))


_HIGHEST_WITH_THIS_MEANING: Final[Mapping[ApiKey, int]] = {
    # With higher versions a client announces transactions of version 2 (KIP-890): Produce then adds
    # partitions to the transaction itself, and each EndTxn returns a new producer epoch.
    ApiKey.PRODUCE: 11,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.OFFSET_FETCH: 7,  # higher versions: several groups in one request
    ApiKey.FIND_COORDINATOR: 3,  # higher versions: several keys in one request
    ApiKey.OFFSET_COMMIT: 9,  # higher versions: topic ids instead of names
    ApiKey.LIST_OFFSETS: 9,  # higher versions: a timeout for reads of tiered storage
    ApiKey.FETCH: 17,  # highest version that `record_requests` supports
}


@cache
def known_versions(api: ApiKey) -> tuple[int, int]:
    """Return the lowest and the highest version of a request that this client can send."""
    known = schema_name_map[api.name.lower()].keys()
    return min(known), min(max(known), _HIGHEST_WITH_THIS_MEANING.get(api, max(known)))


def build_request(api: ApiKey, version: int, /, **values: object) -> RequestPayload:
    """Return a request of one version, from the values of its newest fields.

    Nested entities are dictionaries, arrays are sequences, durations are milliseconds. A value that
    means "unset" (None, False, "", -1, an empty tuple) is left out if the version has no such
    field.

    Raises:
        ValueError: The version has no such field, and the value does not mean "unset".
        TypeError: A field without a default is missing.
    """
    request_type = _request_type(api, version)
    request = build_entity(request_type, values)
    assert isinstance(request, request_type)  # noqa: S101 - for mypy
    return request


def build_response(api: ApiKey, version: int, /, **values: object) -> ResponsePayload:
    """Return a response of one version, from the values of its newest fields.

    The values are as for `build_request`, but each value of a field that the version does not have
    is left out: older clients get less information.

    Raises:
        TypeError: A field without a default is missing.
    """
    response_type = _kio_response_type(api, version)
    response = build_entity(response_type, values, lenient=True)
    assert isinstance(response, response_type)  # noqa: S101 - for mypy
    return response


def build_entity(
    entity_type: SchemaClass, values: Mapping[str, object], *, lenient: bool = False
) -> object:
    """Return an entity of kio from plain values; see `build_request`.

    With `lenient`, values of unknown fields are left out (`build_response`).
    """
    known = _fields_by_name(entity_type)
    arguments = {}
    for name, value in values.items():
        if name in known:
            arguments[name] = _convert(known[name], value, lenient=lenient)
        # A value that the version cannot express must not be
        # dropped silently: the request would mean something else.
        elif not lenient and value not in _UNSET:
            raise ValueError(f"{entity_type.__name__} v{entity_type.__version__} has no {name}")
    return entity_type(**arguments)


def _convert(wanted: SchemaField, value: object, *, lenient: bool) -> object:
    if value is None:
        return None
    if wanted.kafka_type.startswith("timedelta"):
        return timedelta(milliseconds=value)  # type: ignore[arg-type]  # durations are numbers
    if isinstance(value, list | tuple):
        return tuple(_convert(wanted, item, lenient=lenient) for item in value)
    if wanted.entity is not None and isinstance(value, Mapping):
        return build_entity(wanted.entity, value, lenient=lenient)
    return value


@cache
def _fields_by_name(entity_type: SchemaClass) -> Mapping[str, SchemaField]:
    return {each.name: each for each in schema_fields(entity_type)}


def encode_header(api: ApiKey, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return the header of a request, without the size of the frame."""
    name = client_id.encode()
    # The length of the client id has two bytes in every version, also in flexible headers.
    header = _HEADER.pack(api, version, correlation_id, len(name)) + name
    # An empty set of tagged fields.
    return header + b"\0" if _has_tagged_header(api, version) else header


@cache
def _has_tagged_header(api: ApiKey, version: int) -> bool:
    return load_request_schema(api, version).__header_schema__.__flexible__


def encode(entity: Any) -> bytes:  # noqa: ANN401 - any entity of kio
    """Return the bytes of an entity."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def decode_response(api: ApiKey, version: int, body: memoryview, sender: str) -> ResponsePayload:
    """Decode a response body, which begins after the frame's header.

    Raises:
        MalformedResponseError: The bytes are not a response of this kind and version.
    """
    response_type = _response_type(api, version)
    try:
        checked = check(response_type, bytes(body))
        response, size = entity_reader(response_type)(checked.data, 0)
    except (SerialError, ValueError, OverflowError) as error:
        raise MalformedResponseError(
            f"{sender}: the response to {api.title} v{version} cannot be decoded: {error}"
        ) from error
    if left := len(checked.data) - size:
        raise MalformedResponseError(
            f"{sender}: the response to {api.title} v{version} ends {left} bytes early"
        )
    return response


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Header of a client's request.

    Attributes:
        api_key: Number of the request; it need not be an `ApiKey`.
        version: Version of the request.
        correlation_id: The response repeats it.
        client_id: `client.id` of the client; None if it sends none.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Return the header of a request, and the position of what follows the client id.

    All versions of the header begin like this. The body, or the tagged fields of a flexible header
    (`request_body`), follows.

    Raises:
        MalformedRequestError: The frame is too short, or the client id is not UTF-8.
    """
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        end = _HEADER.size + max(length, 0)
        if end > len(frame):
            raise MalformedRequestError(f"a client id of {length} bytes in {len(frame)} bytes")
        client_id = None if length < 0 else bytes(frame[_HEADER.size : end]).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"the header of a request: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id), end


def decode_request(
    api: ApiKey,
    version: int,
    frame: memoryview,
    position: int,
    *,
    most_entries: int | None = None,
    reserve: Callable[[int], object] = lambda _: None,
) -> RequestPayload:
    """Decode the body of a request that this version of kio knows.

    Args:
        api: The kind of request.
        version: Its version.
        frame: The whole frame, without its size.
        position: Position after the client id, from `parse_request_header`.
        most_entries: Most entries of all its arrays together; None for no bound.
        reserve: Called with the number of entries before memory is used for them.

    Raises:
        MalformedRequestError: The bytes are not a request of this kind and version, or it has too
            many entries.
    """
    body = request_body(api, version, frame, position)
    request_type = _request_type(api, version)
    try:
        checked = check(request_type, bytes(body), most_entries)
        reserve(checked.entries)
        # Bytes behind the request are ignored, as brokers do: librdkafka 2.16 sends three of them
        # in a Metadata request for all topics.
        request, _ = entity_reader(request_type)(checked.data, 0)
    except (SerialError, ValueError, OverflowError) as error:
        raise MalformedRequestError(f"{api.title} v{version} cannot be decoded: {error}") from error
    return request


def request_body(api: ApiKey, version: int, frame: memoryview, position: int) -> memoryview:
    """Return the bytes of a request that follow its header, of which its tagged fields are a part.

    Arguments as `decode_request`.

    Raises:
        MalformedRequestError: The tagged fields of the header do not end within the frame.
    """
    if not _has_tagged_header(api, version):
        return frame[position:]
    try:
        return frame[skip_tagged_fields(frame, position) :]
    except MalformedResponseError as error:
        raise MalformedRequestError(f"{api.title} v{version} cannot be decoded: {error}") from error


def encode_response_header(api: ApiKey, version: int, correlation_id: int) -> bytes:
    """Return the header of a response, without the size of the frame."""
    header = _CORRELATION_ID.pack(correlation_id)
    return header + b"\0" if response_header_is_flexible(api, version) else header


@cache  # kio looks the class up by its name at each call
def _request_type(api: ApiKey, version: int) -> type[RequestPayload]:
    return load_request_schema(api, version)


@cache
def _kio_response_type(api: ApiKey, version: int) -> type[ResponsePayload]:
    return load_response_schema(api, version)


@cache
def _response_type(api: ApiKey, version: int) -> type[ResponsePayload]:
    if api is ApiKey.DESCRIBE_TRANSACTIONS and version == 0:
        return DescribeTransactionsResponse
    return load_response_schema(api, version)


@cache
def response_header_is_flexible(api: ApiKey, version: int) -> bool:
    """Return whether tagged fields follow the correlation id; never for ApiVersions (KIP-511)."""
    return load_response_schema(api, version).__header_schema__.__flexible__


def api_error(what: str, code: int, detail: str | None = None) -> KafkaApiError:
    """Return the error for an error code; `what` names the broker, the request and the subject."""
    try:
        known = ErrorCode(code)
    except ValueError:
        # A newer broker may send codes that kio does not know.
        name, retry = f"error {code}", False
    else:
        name, retry = known.name.upper(), known.retriable
    text = f"{what}: {name} ({code})" + (f": {detail}" if detail else "")
    return KafkaApiError(text, code=code, name=name, retry=retry)


_OPERATIONS: Final[Mapping[ApiKey, str]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: "Write",
    ApiKey.CREATE_PARTITIONS: "Alter",
    ApiKey.CREATE_TOPICS: "Create",
    ApiKey.DELETE_RECORDS: "Delete",
    ApiKey.DELETE_TOPICS: "Delete",
    ApiKey.DESCRIBE_CONFIGS: "DescribeConfigs",
    ApiKey.FETCH: "Read",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "AlterConfigs",
    ApiKey.INIT_PRODUCER_ID: "Write",
    ApiKey.OFFSET_COMMIT: "Read",
    ApiKey.PRODUCE: "Write",
    ApiKey.TXN_OFFSET_COMMIT: "Read",
}
"""Permission on the topic that a request needs; Describe for all others."""
_GROUP_OPERATIONS: Final[Mapping[ApiKey, str]] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: "Describe",
    ApiKey.DELETE_GROUPS: "Delete",
    ApiKey.DESCRIBE_GROUPS: "Describe",
    ApiKey.FIND_COORDINATOR: "Describe",
    ApiKey.OFFSET_FETCH: "Describe",
}
"""Permission on the group that a request needs; Read for all others."""


def missing_permission(api: ApiKey, code: int) -> str | None:
    """Return the permission that a rejected principal lacks; None for other error codes."""
    match code:
        case ErrorCode.topic_authorization_failed:
            return f"the principal needs {_OPERATIONS.get(api, 'Describe')} on the topic"
        case ErrorCode.group_authorization_failed:
            operation = _GROUP_OPERATIONS.get(api, "Read")
            return f"the principal needs {operation} on the group"
        case ErrorCode.transactional_id_authorization_failed:
            describes = api is ApiKey.FIND_COORDINATOR
            operation = "Describe" if describes else "Write"
            return f"the principal needs {operation} on the transactional id"
        case ErrorCode.cluster_authorization_failed:
            return "the principal lacks a permission on the cluster"
    return None


@dataclass(frozen=True, slots=True)
class ErrorAt:
    """An error code other than 0, and the topic, partition or name to which it belongs."""

    code: int
    subject: str
    message: str | None


def errors_in(response: object, subject: str = "") -> Iterator[ErrorAt]:
    """Yield all error codes of a response, at every level."""
    values = {field.name: getattr(response, field.name) for field in fields(response)}  # type: ignore[arg-type]
    subject = _subject_of(values, subject)
    for value in values.values():
        if isinstance(value, ErrorCode) and value is not ErrorCode.none:
            yield ErrorAt(int(value), subject, values.get("error_message"))
        elif isinstance(value, tuple):
            for item in value:
                if is_dataclass(item):
                    yield from errors_in(item, subject)


def _subject_of(values: Mapping[str, object], outer: str) -> str:
    for name in ("partition_index", "partition", "index"):
        if isinstance(values.get(name), int):
            return f"{outer}-{values[name]}"
    for name in ("name", "topic", "topic_name", "transactional_id", "resource_name", "user"):
        if isinstance(values.get(name), str):
            return str(values[name])
    return outer


# The response to DescribeTransactions, in place of kio's.
#
# kio 0.6.5 declares the start of a transaction as a point in time, and cannot decode the -1 that a
# coordinator sends while no transaction is open. All other definitions are the same as kio's.


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """State of one transactional id; `transaction_start_time` is -1 without open transaction."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    transactional_id: str = field(metadata={"kafka_type": "string"})
    transaction_state: str = field(metadata={"kafka_type": "string"})
    transaction_timeout: i32 = field(metadata={"kafka_type": "int32"})
    transaction_start_time: i64 = field(metadata={"kafka_type": "int64"})
    producer_id: i64 = field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    topics: tuple[TopicData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    """Version 0, the only version of the response."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    transaction_states: tuple[TransactionState, ...]
