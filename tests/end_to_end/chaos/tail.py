"""Readers of the store alone that also read tail packs, and the promotion at the end."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Self

from sidetier import TieredConsumer
from sidetier.cli.main import run
from tests.end_to_end.chaos.ledger import Ledger
from tests.end_to_end.chaos.live import LASTING, PlainReader
from tests.end_to_end.chaos.scene import ASK_SECONDS, CATCH_UP_SECONDS, PARTITIONS, TOPICS
from tests.harness.waiting import wait_until


class TailReaders:
    """Readers of archive and tail, from the first offset on. They ask no broker, and must receive
    each acknowledged record once, also those of active segments. They read while the context is
    entered.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
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

    @property
    def received(self) -> int:
        """Number of records that both received."""
        return sum(len(row.rows) for one in self._readers for row in one.assignments.values())

    def promote(self, tell: Callable[[str], None]) -> Iterator[str]:
        """Store the tails of the topics that lose nothing as segments; yield what went wrong."""
        options = [word for topic in TOPICS for word in ("--topic", topic)]
        code = run(["tail", "promote", *options, "--config", self._config_file])
        tell(f"the tails are promoted: {code}")
        if code:
            yield f"`sidetier tail promote` ended with {code}"
