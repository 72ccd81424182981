"""Readers of the store alone that also read tail packs, and the promotion at the end."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Self

from sidetier import TieredConsumer
from sidetier.cli.main import run
from tests.end_to_end.chaos.ledger import Ledger, Partition
from tests.end_to_end.chaos.live import LASTING, PlainReader
from tests.end_to_end.chaos.scene import ASK_SECONDS, CATCH_UP_SECONDS, PARTITIONS, TOPICS
from tests.harness.waiting import wait_until

_LOOK_SECONDS = 0.5


class TailReaders:
    """Readers of archive and tail, from the first offset on. They ask no broker, and must receive
    each acknowledged record once, also those of active segments. They read while the context is
    entered.

    Args:
        config: The configuration of a consumer of the store.
        archive_end: Returns the archive end offset of a partition as it is now.
    """

    def __init__(self, config: Mapping[str, Any], archive_end: Callable[[Partition], int]) -> None:
        self._archive_end = archive_end
        self._counted: dict[tuple[str, Partition], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._count, name="tail-count", daemon=True)
        self.from_packs = 0
        """Number of offsets that a reader had received before they were archived."""
        self._config_file: str = config["tiered.storage.config"]
        config = {
            **config,
            "tiered.storage.mode": "TIERED_STORAGE_ONLY",
            "tiered.storage.with.tail": True,
        }
        self._readers = [
            PlainReader(f"tail-{isolation}", config, tps, isolation, open_consumer=TieredConsumer)
            for tps, isolation in ((PARTITIONS, "read_committed"), (LASTING, "read_uncommitted"))
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for reader in self._readers:
            self._stack.enter_context(reader)
        self._thread.start()
        self._stack.callback(self._thread.join)
        self._stack.callback(self._stop.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def end(self, ledger: Ledger) -> Iterator[str]:
        """Wait until both have read up to the last record, stop, and yield the violations."""
        truths = {reader: reader.truth(ledger) for reader in self._readers}

        def late() -> dict[str, list[tuple[str, int]]]:
            found = {reader.name: reader.late(truth) for reader, truth in truths.items()}
            return {name: partitions for name, partitions in found.items() if partitions}

        try:
            wait_until(
                lambda: not late(), CATCH_UP_SECONDS, "the readers of the tail to end", ASK_SECONDS
            )
        except AssertionError as error:
            yield f"{error}: {late()}"
        self._stack.close()
        for reader, truth in truths.items():
            yield from (f"{reader.name}: {one}" for one in reader.violations(truth))

    def _count(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for reader in self._readers:
                for tp in reader.assignments:
                    # The reader first: what is above an end that is read later was not archived.
                    end, key = reader.last(tp) + 1, (reader.name, tp)
                    if end <= self._counted.get(key, 0):
                        continue
                    try:
                        start = max(self._archive_end(tp), self._counted.get(key, 0))
                    except Exception:  # noqa: BLE001, S112 - the store is made to fail
                        continue
                    self.from_packs += max(end - start, 0)
                    self._counted[key] = end

    def promote(self, tell: Callable[[str], None]) -> Iterator[str]:
        """Store the tails of the topics that lose nothing as segments; yield what went wrong."""
        options = [word for topic in TOPICS for word in ("--topic", topic)]
        code = run(["tail", "promote", *options, "--config", self._config_file])
        tell(f"the tails are promoted: {code}")
        if code:
            yield f"`sidetier tail promote` ended with {code}"
