"""The codec of stored JSON objects: a frozen dataclass for the fields, and a `version`.

Every such object is read through it: bytes that others have written are hostile input. It refuses
bytes that are not JSON or are nested too deeply, another version, and fields that are missing or
have another type: JSON's `true` or `"5"` is not a number. Fields that the model does not have are
ignored: a writer raises the version only if a reader that ignores its new fields would be wrong.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from sidetier.segments.errors import (
    MalformedObjectError,
    ObjectNotFoundError,
    UnknownVersionError,
)
from sidetier.segments.offsets import MAX_OFFSET
from sidetier.storage.port import RemoteStorage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter, ValidationError  # loaded with the first object

T = TypeVar("T")


@dataclass(frozen=True)
class _Head:
    version: Any


class Stored(NamedTuple, Generic[T]):
    """An object as it was read, with its etag."""

    value: T
    etag: str


class JsonCodec(Generic[T]):
    """Encodes and decodes one kind of object.

    Args:
        model: A frozen dataclass. A `ValueError` in its `__post_init__` refuses the object.
        what: What the object is, for errors: `a layout note`.
        version: The version that is written and read.
        remedy: What to do with an object that does not parse, for errors.
    """

    def __init__(self, model: type[T], what: str, version: int = 1, *, remedy: str = "") -> None:
        self._model = model
        self._what = what
        self._version = version
        self._remedy = f". {remedy}" if remedy else ""

    def encode(self, values: Mapping[str, object], **form: Any) -> bytes:  # noqa: ANN401
        """Encode the values and the version as JSON, sorted by name.

        Args:
            values: The values of the fields, by the names in the object.
            form: Arguments of `json.dumps`.
        """
        form = {"sort_keys": True, **form}
        return json.dumps({"version": self._version, **values}, **form).encode()

    def decode(self, data: bytes | str, key: str) -> T:
        """Decode an object; `key` is for errors.

        Raises:
            MalformedObjectError: It does not parse, or is of another version. The message names the
                key, and the field or the version.
        """
        from pydantic import ValidationError  # noqa: PLC0415 - only who reads an object loads it

        try:
            version = _head().validate_json(data).version
            if type(version) is not int or version != self._version:
                raise unknown_version(key, version, self._version)
            return self._adapter.validate_json(data, strict=True)
        except ValidationError as error:
            raise MalformedObjectError(
                f"{key}: not {self._what}: {first_of(error)}; it begins {data[:60]!r}{self._remedy}"
            ) from None

    def read(self, store: RemoteStorage, key: str) -> Stored[T] | None:
        """Read an object; None if there is none. One request.

        Raises:
            MalformedObjectError: As `decode`.
        """
        try:
            answer = store.get_object(key)
        except ObjectNotFoundError:
            return None
        return Stored(self.decode(answer.data, key), answer.head.etag)

    @cached_property
    def _adapter(self) -> "TypeAdapter[T]":
        from pydantic import TypeAdapter  # noqa: PLC0415 - as in `decode`

        return TypeAdapter(self._model)


@cache
def _head() -> "TypeAdapter[_Head]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - as in `decode`

    return TypeAdapter(_Head)


def check_numbers(model: "DataclassInstance") -> None:
    """Raise ValueError if a field of a model is a number of more than 64 bits."""
    for name in (field.name for field in fields(model)):
        value = getattr(model, name)
        if isinstance(value, int) and not -MAX_OFFSET <= value <= MAX_OFFSET:
            raise ValueError(f"{name} has more than 64 bits")


def unknown_version(key: str, version: object, known: int) -> UnknownVersionError:
    """Return the error for a stored object of a version that this program does not read."""
    return UnknownVersionError(
        f"{key} has version {version!r}, and this Sidetier reads version {known}: upgrade Sidetier"
    )


def first_of(error: "ValidationError") -> str:
    """Return the first problem in words: the place of the field, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
