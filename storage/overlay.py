"""A store whose changes stay in a second store: the first one is only read.

A drill uses it to run what writes to an archive, without a change of the archive.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import BinaryIO

from sidetier.segments.errors import ObjectNotFoundError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checks import check_condition
from sidetier.storage.port import (
    NO_OPTIONS,
    Body,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
    StorageCapabilities,
    StoredObject,
)


@dataclass(frozen=True, slots=True)
class OverlayStorage:
    """`below` with the changes in `above`, which begins empty. No other program writes to `above`.

    `close` closes `above` alone.
    """

    below: RemoteStorage
    above: RemoteStorage
    _deleted: set[str] = field(default_factory=set)
    """Keys that `below` has, and that were deleted here."""

    @property
    def capabilities(self) -> StorageCapabilities:
        """The features of `above`."""
        return self.above.capabilities

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """Store the object above."""
        return self.above.put_object(
            key,
            body,
            PutOptions(options.metadata, options.checksum, self._checked(key, options.condition)),
        )

    def get_object(self, key: str) -> StoredObject:
        """Return the object from where it is."""
        return self._side(key).get_object(key)

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """Open the object where it is."""
        side = self._side(key)
        return side.get_object_input_stream(key, start, end, condition=condition)

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """List both stores. Above wins."""
        above = self.above.list_objects(prefix, start_after=start_after)
        below = self.below.list_objects(prefix, start_after=start_after)
        last = ""
        # `merge` is stable: of two equal keys, the one above comes first.
        for row, is_above in merge(
            ((row, True) for row in above),
            ((row, False) for row in below),
            key=lambda found: found[0].key.encode(),
        ):
            if row.key != last and (is_above or row.key not in self._deleted):
                yield row
            last = row.key

    def list_directories(self, prefix: str) -> list[str]:
        """Return the directories of both. One whose objects were all deleted here stays."""
        found = {*self.above.list_directories(prefix), *self.below.list_directories(prefix)}
        return sorted(found, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """Return the properties from where the object is."""
        return self._side(key).head_object(key, with_checksum=with_checksum)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """Delete the object above, and hide it below."""
        etag = self._etag(key)
        if etag is None:
            self.above.delete_object(key)  # checks the key
            return
        check_condition(key, condition, etag)
        self._deleted.add(key)
        self.above.delete_object(key)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Delete the objects above, and hide them below."""
        self._deleted.update(keys)
        self.above.delete_objects(keys)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """Copy the object to `above`. One that is below is held in memory."""
        checked = self._checked(target, condition)
        if self._side(source) is self.above:
            return self.above.copy_object(source, target, condition=checked)
        found = self.below.get_object(source)
        options = PutOptions(found.head.metadata, found.head.checksum, checked)
        return self.above.put_object(target, BytesBody(found.data), options)

    def close(self) -> None:
        """Close `above`."""
        self.above.close()

    def _side(self, key: str) -> RemoteStorage:
        """Return the store that has the object; `above` if neither has."""
        try:
            self.above.head_object(key)
        except ObjectNotFoundError:
            return self.above if key in self._deleted else self.below
        return self.above

    def _etag(self, key: str) -> str | None:
        try:
            return self.head_object(key).etag
        except ObjectNotFoundError:
            return None

    def _checked(self, key: str, condition: Condition | None) -> Condition | None:
        """Return the condition for a write to `above`, after a comparison with an object below."""
        if condition is None or self._side(key) is self.above:
            return condition
        check_condition(key, condition, self._etag(key))
        return IfAbsent()
