"""A bounded cache of the entries that were used last."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def _one(_value: object) -> int:
    return 1


class Lru(Generic[Key, Value]):
    """Entries up to a total weight. The entry that was used longest ago is dropped first.

    Thread-safe.

    Args:
        capacity: Largest total weight. A heavier single entry is not kept.
        weigh: Weight of a value, which must not change; by default, each entry weighs 1.
    """

    def __init__(self, capacity: int, weigh: Callable[[Value], int] = _one) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._guard = threading.Lock()
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._weight = 0

    @property
    def weight(self) -> int:
        """Total weight of all entries."""
        return self._weight

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Value | None:
        """Return the value, which counts as used now; None if there is none."""
        with self._guard:
            value = self._entries.get(key)
            if value is not None or key in self._entries:
                self._entries.move_to_end(key)
            return value

    def items(self) -> list[tuple[Key, Value]]:
        """Return all entries. The order in which they were used stays as it is."""
        with self._guard:
            return list(self._entries.items())

    def put(self, key: Key, value: Value) -> list[Value]:
        """Add or replace an entry. Return the values that are no longer kept."""
        with self._guard:
            dropped = self._remove(key)
            if self._weigh(value) > self._capacity:
                return [*dropped, value]
            self._entries[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._capacity:
                dropped += self._remove(next(iter(self._entries)))
            return dropped

    def pop(self, key: Key) -> Value | None:
        """Remove an entry. Return its value; None if there was none."""
        with self._guard:
            removed = self._remove(key)
            return removed[0] if removed else None

    def get_or(self, key: Key, load: Callable[[], Value]) -> Value:
        """Return the value; call `load` for it if there is none. Raises what `load` raises.

        `load` runs without the lock, so a slow one does not hold up other keys. Two threads may
        load the same key; both get the value that was loaded first.
        """
        with self._guard:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        value = load()
        with self._guard:
            if key in self._entries:
                return self._entries[key]
        self.put(key, value)
        return value

    def clear(self) -> None:
        """Remove all entries."""
        with self._guard:
            self._entries.clear()
            self._weight = 0

    def _remove(self, key: Key) -> list[Value]:
        if key not in self._entries:
            return []
        value = self._entries.pop(key)
        self._weight -= self._weigh(value)
        return [value]
