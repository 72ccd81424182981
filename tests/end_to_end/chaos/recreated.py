"""Readers of the topic that is deleted and created again."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from tests.end_to_end.chaos.group_verdict import Truth, changes, violations
from tests.end_to_end.chaos.groups import Group
from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.scene import ASK_SECONDS, CATCH_UP_SECONDS, RECREATED
from tests.end_to_end.chaos.schedule import FEW_PARTITIONS
from tests.harness.waiting import wait_until

MODES = ("KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED", "TIERED_STORAGE_ONLY")
_SLOW_RATE = 60.0
"""Records per second of a reader that is to be in the middle of the archive when it is replaced."""


class RecreatedReaders:
    """In each mode, one reader during the whole run and a slow one, which begins again before each
    deletion. They read while the context is entered.
    """

    def __init__(self, config: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        partitions = [(RECREATED, number) for number in range(FEW_PARTITIONS)]

        def group(mode: str, name: str, rate: float | None = None) -> Group:
            return Group(
                mode,
                config,
                (),
                tell,
                name=f"{mode}-{name}",
                partitions=partitions,
                rate=rate,
                recreated=(RECREATED,),
            )

        self._lasting = [group(mode, "lasting") for mode in MODES]
        self._slow = [group(mode, "slow", _SLOW_RATE) for mode in MODES]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for group in self._groups:
            self._stack.enter_context(group)
            group.join()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def _groups(self) -> list[Group]:
        return [*self._lasting, *self._slow]

    def begin_again(self) -> None:
        """Replace the slow readers by new ones, which read from the beginning."""
        for group in self._slow:
            group.replace()

    def end(self, truth: Truth, stored: Mapping[Partition, int]) -> Iterator[str]:
        """Wait until everybody has read up to the end, stop, and yield the violations.

        Args:
            truth: The records that producers know of.
            stored: The archive's end offsets, up to which a reader of the store alone comes.
        """
        truths = {
            group.name: replace(truth, ends=stored)
            if group.mode == "TIERED_STORAGE_ONLY"
            else truth
            for group in self._groups
        }

        def missing() -> dict[str, list[Partition]]:
            gone = {group.name: group.missing(truths[group.name].lasts) for group in self._groups}
            return {name: partitions for name, partitions in gone.items() if partitions}

        for group in self._slow:
            group.rate = None
        try:
            wait_until(lambda: not missing(), CATCH_UP_SECONDS, "the readers to end", ASK_SECONDS)
        except AssertionError as error:
            late = missing()
            seen = {group.name: group.last_seen() for group in self._groups if group.name in late}
            yield f"{error}: {late}; the last records of each assignment: {seen}"
        self._stack.close()
        for group in self._groups:
            yield from group.problems
            found = violations(truths[group.name], group.assignments, group.mode)
            yield from (f"{group.name}: {one}" for one in found)

    def changes(self, truth: Truth) -> int:
        """How often a reader came from a deleted topic into the one that was created again."""
        return sum(changes(truth, group.assignments) for group in self._groups)
