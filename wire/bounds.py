"""Checks the counts and lengths of encoded entities before kio decodes them.

kio reserves memory for as many entries as an array announces, before it has read the first one: 20
bytes that announce four billion entries end the process. `check` walks over the bytes by the fields
of kio's schemas, reads only counts and lengths, and compares each of them with the bytes that are
left. Its own memory does not depend on what is announced.

Source: Kafka's protocol guide (primitive types), KIP-482 (tagged fields), KIP-893 (nullable
structs).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin

from sidetier.segments.errors import MalformedResponseError
from sidetier.segments.varints import encode_unsigned, read_unsigned

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_CONTINUED: Final = 0x80
"""The bit of a byte of a varint after which another one follows."""
_SIZES: Final[Mapping[str, int]] = MappingProxyType(
    {
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
        "uint8": 1,
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "uuid": 16,
    }
)
"""Bytes of each type of kio that always has the same number of them."""


SchemaClass = Any
"""A class of kio. mypy does not take `type[Any]` for hashable, so a cached function refuses it."""


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field of a class of kio.

    Attributes:
        name: Its name.
        kafka_type: kio's name of its primitive type, or of its array's entries' type; empty for
            entities.
        entity: The class of the entity, or of the array's entries; None for primitive types.
        is_array: Whether it is an array.
        is_nullable: Whether it can be null; of an array, the array itself.
        tag: Number of a tagged field; None for the others.
    """

    name: str
    kafka_type: str
    entity: SchemaClass | None
    is_array: bool
    is_nullable: bool
    tag: int | None


@cache
def schema_fields(entity_type: SchemaClass) -> tuple[SchemaField, ...]:
    """Return the fields of a class of kio, in the order of their bytes."""
    return tuple(
        SchemaField(
            each.name,
            each.metadata.get("kafka_type", ""),
            _entity_in(each.type),
            is_array=get_origin(_not_none(each.type)) is tuple,
            is_nullable=NoneType in get_args(each.type),
            tag=each.metadata.get("tag"),
        )
        for each in fields(entity_type)
    )


def _not_none(annotation: Any) -> Any:  # noqa: ANN401 - a type, or a union
    """Return `X` for `X` and for `X | None`."""
    others = [each for each in get_args(annotation) if each is not NoneType]
    return others[0] if NoneType in get_args(annotation) else annotation


def _entity_in(annotation: object) -> type[Any] | None:
    """Return the entity in `Entity`, `tuple[Entity, ...]` and `tuple[Entity, ...] | None`."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    inner = (_entity_in(argument) for argument in get_args(annotation))
    return next((entity for entity in inner if entity is not None), None)


class Checked(NamedTuple):
    """Bytes of an entity that kio can decode at a cost that the caller knows.

    Attributes:
        data: The bytes, without the tagged fields that the schema does not have. Further
            bytes may follow the entity.
        entries: Number of entries of all arrays together.
    """

    data: bytes
    entries: int


def check(entity_type: SchemaClass, data: bytes, most_entries: int | None = None) -> Checked:
    """Check the counts and lengths of an encoded entity against the bytes that there are.

    Args:
        entity_type: The class of kio.
        data: Begins with the entity.
        most_entries: Most entries of all arrays together; None for as many as the bytes have.

    Raises:
        ValueError: A count or a length reaches beyond the bytes, a field is null that must not be,
            or there are more entries. The text names the field.
    """
    walk = _Walk(data, most_entries)
    try:
        size = _entity_shape(entity_type).step(walk, 0)
    except (IndexError, struct.error):
        size = len(data) + 1
    except MalformedResponseError as error:
        raise ValueError(str(error)) from None
    if size > len(data):
        raise ValueError(f"a field reaches beyond the last of {len(data)} bytes")
    return Checked(walk.known() if walk.unknown else data, walk.entries)


@dataclass(slots=True)
class _Walk:
    """What is known of an entity up to some position."""

    data: bytes
    most_entries: int | None
    entries: int = 0
    unknown: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Ranges of bytes of unknown tagged fields, and of the counts that include them, with the bytes
    that take their place.
    """

    def add_entries(self, count: int, end: int, name: str) -> None:
        """Count the entries of an array, which end at byte `end` at the earliest."""
        if end > len(self.data):
            raise ValueError(f"{name}: {count} entries, which are not there")
        self.entries += count
        if self.most_entries is not None and self.entries > self.most_entries:
            raise ValueError(
                f"{name}: {self.entries} entries so far; at most {self.most_entries} are accepted"
            )

    def known(self) -> bytes:
        """Return the bytes without unknown tagged fields."""
        pieces, at = [], 0
        for start, end, instead in sorted(self.unknown):
            pieces += [self.data[at:start], instead]
            at = end
        return b"".join((*pieces, self.data[at:]))


_Step = Callable[[_Walk, int], int]
"""Walks over one field or entity; returns the position after it, which may be beyond the end."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the bytes of a field or entity are walked over.

    Attributes:
        least: Least number of bytes.
        is_fixed: Whether there are always `least` bytes.
        step: Walks over it.
        is_tagged: Whether `least` - 1 fixed bytes and a count of tagged fields make up all of it.
    """

    least: int
    is_fixed: bool
    step: _Step
    is_tagged: bool = False


@cache
def _entity_shape(entity_type: SchemaClass) -> _Shape:
    is_flexible = bool(entity_type.__flexible__)
    all_fields = schema_fields(entity_type)
    shapes = [
        _field_shape(entity_type, each, is_flexible=is_flexible)
        for each in all_fields
        if each.tag is None
    ]
    least = sum(shape.least for shape in shapes)
    steps: list[_Step] = []
    fixed = 0
    for shape in shapes:  # neighbours of fixed size become one step
        if shape.is_fixed:
            fixed += shape.least
            continue
        steps += [_skip(fixed), shape.step] if fixed else [shape.step]
        fixed = 0
    if fixed:
        steps.append(_skip(fixed))
    if is_flexible:
        tagged = {
            each.tag: _field_shape(entity_type, each, is_flexible=True).step
            for each in all_fields
            if each.tag is not None
        }
        steps.append(_tags_step(entity_type.__name__, tagged))
    are_fixed = all(shape.is_fixed for shape in shapes)

    def step(walk: _Walk, position: int) -> int:
        for each in steps:
            position = each(walk, position)
        return position

    return _Shape(
        least + is_flexible,
        are_fixed and not is_flexible,
        steps[0] if len(steps) == 1 else step,
        is_tagged=are_fixed and is_flexible,
    )


def _field_shape(owner: SchemaClass, each: SchemaField, *, is_flexible: bool) -> _Shape:
    name = f"{owner.__name__}.{each.name}"
    if each.entity is not None:
        shape = _entity_shape(each.entity)
    elif each.kafka_type in _SIZES:
        size = _SIZES[each.kafka_type]
        shape = _Shape(size, is_fixed=True, step=_skip(size))
    elif is_flexible:
        shape = _Shape(1, is_fixed=False, step=_skip_compact)
    elif each.kafka_type == "string":
        shape = _Shape(2, is_fixed=False, step=_skip_string)
    else:
        shape = _Shape(4, is_fixed=False, step=_skip_bytes)
    if each.is_array:
        least = 1 if is_flexible else _INT32.size
        step = _array_step(name, shape, is_flexible=is_flexible, is_nullable=each.is_nullable)
        return _Shape(least, is_fixed=False, step=step)
    if each.entity is not None and each.is_nullable and each.tag is None:
        return _Shape(1, is_fixed=False, step=_nullable_step(shape.step))
    return shape


def _skip(size: int) -> _Step:
    return lambda _, position: position + size


def _skip_string(walk: _Walk, position: int) -> int:
    (length,) = _INT16.unpack_from(walk.data, position)
    return position + _INT16.size + max(int(length), 0)  # kio refuses other negative ones than null


def _skip_bytes(walk: _Walk, position: int) -> int:
    (length,) = _INT32.unpack_from(walk.data, position)
    return position + _INT32.size + max(int(length), 0)


def _skip_compact(walk: _Walk, position: int) -> int:
    length = walk.data[position]
    if length < _CONTINUED:
        return position + (length or 1)  # the length plus one, in one byte; 0 for null
    length, position = read_unsigned(walk.data, position)
    return position + max(length - 1, 0)


def _nullable_step(inner: _Step) -> _Step:
    def step(walk: _Walk, position: int) -> int:
        is_null = walk.data[position] >= _CONTINUED  # a signed byte
        return position + 1 if is_null else inner(walk, position + 1)

    return step


def _array_step(name: str, shape: _Shape, *, is_flexible: bool, is_nullable: bool) -> _Step:
    least, inner, is_fixed, is_tagged = shape.least, shape.step, shape.is_fixed, shape.is_tagged
    read_count = _compact_count if is_flexible else _legacy_count
    lowest = -1 if is_nullable else 0

    def step(walk: _Walk, position: int) -> int:
        count, position = read_count(walk.data, position)
        if count < lowest:
            raise ValueError(f"{name}: {'null' if count == -1 else count}, which is not an array")
        if count <= 0:
            return position
        end = position + count * least
        walk.add_entries(count, end, name)
        if is_fixed:
            return end
        # Most arrays are of numbers with an empty set of tagged fields.
        if is_tagged and not walk.data[position + least - 1 : end : least].strip(b"\0"):
            return end
        for _ in range(count):
            position = inner(walk, position)
        return position

    return step


def _legacy_count(data: bytes, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(data, position)[0], position + _INT32.size


def _compact_count(data: bytes, position: int) -> tuple[int, int]:
    count = data[position]
    if count < _CONTINUED:  # most counts have one byte
        return count - 1, position + 1
    count, position = read_unsigned(data, position)
    return count - 1, position


def _tags_step(name: str, tagged: Mapping[int, _Step]) -> _Step:
    def step(walk: _Walk, position: int) -> int:
        return position + 1 if not walk.data[position] else walk_tags(walk, position)

    def walk_tags(walk: _Walk, start: int) -> int:
        count, position = read_unsigned(walk.data, start)
        after_count = position
        walk.add_entries(count, position + 2 * count, f"{name}'s tagged fields")
        unknown = 0
        for _ in range(count):
            begin = position
            tag, position = read_unsigned(walk.data, position)
            size, position = read_unsigned(walk.data, position)
            end = position + size
            if end > len(walk.data):
                raise ValueError(f"{name}: a tagged field of {size} bytes, which are not there")
            if tag not in tagged:
                unknown += 1
                walk.unknown.append((begin, end, b""))
            elif (ends := tagged[tag](walk, position)) != end:
                raise ValueError(
                    f"{name}: tagged field {tag} has {ends - position} of {size} bytes"
                )
            position = end
        if unknown:
            walk.unknown.append((start, after_count, encode_unsigned(count - unknown)))
        return position

    return step


def tagged_fields(buffer: memoryview, position: int) -> tuple[Mapping[int, memoryview], int]:
    """Return the tagged fields that begin at `position` by their tags, and the position after them.

    Raises:
        MalformedResponseError: They end beyond the buffer.
    """
    found: dict[int, memoryview] = {}
    try:
        count, position = read_unsigned(buffer, position)
        for _ in range(count):
            tag, position = read_unsigned(buffer, position)
            size, position = read_unsigned(buffer, position)
            found[tag] = buffer[position : position + size]
            position += size
    except ValueError as error:
        raise MalformedResponseError(str(error)) from None
    # Sizes are not negative, so one check at the end is enough.
    if position > len(buffer):
        raise MalformedResponseError(f"tagged fields end at byte {position} of {len(buffer)}")
    return found, position


def skip_tagged_fields(buffer: memoryview, position: int) -> int:
    """Return the position after the tagged fields that begin at `position`.

    Raises:
        MalformedResponseError: They end beyond the buffer.
    """
    return tagged_fields(buffer, position)[1]
