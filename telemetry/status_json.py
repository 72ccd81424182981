"""The status as JSON, for the daemon, which writes it, and for the commands, which read it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from sidetier.telemetry.status import PartitionStatus, StatusSnapshot

T = TypeVar("T")
Read = Callable[[Any], Any]


def status_json(snapshot: StatusSnapshot, topic: str | None = None) -> dict[str, Any]:
    """Return the object of `/api/partitions`, with the partitions of one topic or of all."""
    rows = [one for one in snapshot.partitions if topic is None or one.topic == topic]
    pins = [plain(pin) for pin in snapshot.pins if topic is None or pin.topic == topic]
    return {**whole_json(snapshot), "pins": pins, "partitions": [*map(partition_row, rows)]}


def whole_json(snapshot: StatusSnapshot) -> dict[str, Any]:
    """Return what concerns the whole sidecar, without the conditions of readiness."""
    lists = (
        "conditions",
        "partitions",
        "pins",
        "held_errors",
        "cluster_snapshots",
        "local_retention",
    )
    return {
        **plain(snapshot, without=(*lists, "alive", "death", "last_drill")),
        "ready": snapshot.alive and snapshot.ready,
        "held_errors": [asdict(error) for error in snapshot.held_errors],
        "cluster_snapshots": [asdict(taken) for taken in snapshot.cluster_snapshots],
        "local_retention": [asdict(excess) for excess in snapshot.local_retention],
        "last_drill": None if snapshot.last_drill is None else asdict(snapshot.last_drill),
    }


def partition_row(status: PartitionStatus) -> dict[str, Any]:
    """Return a partition's status as JSON object."""
    segments = [plain(segment) for segment in status.segments]
    return {**plain(status, without=("segments",)), "segments": segments}


def plain(value: Any, without: Collection[str] = ()) -> dict[str, Any]:  # noqa: ANN401 -- a dataclass
    """Return the fields by name, one level deep. `asdict` would first copy 10,000 partitions."""
    names = value.__dataclass_fields__
    return {name: getattr(value, name) for name in names if name not in without}


def parsed(kind: type[T], value: object) -> T:
    """Return a value of the status from its JSON.

    Fields that a newer sidecar adds are ignored; those that an older one lacks have their defaults.

    Raises:
        ValueError: A field is missing that every sidecar has, or a value has another type.
    """
    return cast("T", _reader(cast("Any", kind))(value))


@cache
def _reader(kind: Any) -> Read:  # noqa: ANN401 -- a type
    kind = getattr(kind, "__supertype__", kind)
    arguments = get_args(kind)
    if get_origin(kind) in {Union, UnionType}:
        [inner] = [_reader(member) for member in arguments if member is not type(None)]
        return lambda value: None if value is None else inner(value)
    if get_origin(kind) is tuple:
        return _tuple_reader(arguments)
    if is_dataclass(kind):
        return _object_reader(kind)
    if issubclass(kind, StrEnum):  # a newer sidecar may have further members
        return lambda value: kind._value2member_map_.get(value, value)
    types = {float: {int, float}}.get(kind, {kind})
    return lambda value: _checked(value, types)


def _tuple_reader(arguments: tuple[Any, ...]) -> Read:
    readers = [_reader(one) for one in arguments if one is not Ellipsis]
    if Ellipsis in arguments:
        return lambda value: tuple(map(readers[0], _checked(value, {list})))
    return lambda value: tuple(
        read(one) for read, one in zip(readers, _checked(value, {list}), strict=True)
    )


def _object_reader(kind: Any) -> Read:  # noqa: ANN401 -- a type
    readers = {field.name: _reader(cast("Any", field.type)) for field in fields(kind)}

    def read(value: Mapping[str, Any]) -> object:
        known = _checked(value, {dict}).keys() & readers.keys()
        try:
            return kind(**{name: readers[name](value[name]) for name in known})
        except TypeError as error:  # a field without a default is missing
            raise ValueError(str(error)) from None

    return read


def _checked(value: Any, types: Collection[type]) -> Any:  # noqa: ANN401 -- as it was given
    if type(value) not in types:
        raise ValueError(f"{value!r} is not of type {' or '.join(one.__name__ for one in types)}")
    return value
