"""The end of a run: catch up, stop all processes, and collect the evidence."""

from collections.abc import Iterable, Iterator

from confluent_kafka import KafkaException

from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.load import CarelessLoad
from tests.end_to_end.chaos.observer import Observer
from tests.end_to_end.chaos.scene import (
    ALL_PARTITIONS,
    ASK_SECONDS,
    CATCH_UP_SECONDS,
    PARTITIONS,
    SHORTENED,
    UNCLEAN,
    Scene,
)
from tests.end_to_end.chaos.schedule import BROKERS
from tests.end_to_end.chaos.served import Served, high_watermarks
from tests.end_to_end.chaos.verdict import broker_errors, sidecar_gaps, skipped_markers
from tests.harness.local_segments import log_bases
from tests.harness.waiting import wait_until


class Ending:
    """The processes that still run after the faults."""

    def __init__(
        self,
        scene: Scene,
        observer: Observer,
        served: Served,
        careless: CarelessLoad,
        broken: Iterable[str] = (),
    ) -> None:
        """Create the ending; `broken` are the deliberately broken log dirs."""
        self.scene = scene
        self._broken = broken
        self.observer = observer
        self.served = served
        self.careless = careless
        self.ends: dict[Partition, int] = {}
        self.expired = 0
        self.markers_skipped: set[Partition] = set()
        self.trims_held = 0
        self.parts = 0

    def catch_up(self) -> list[str]:
        """Wait until every closed segment is stored, every committed record of the topics that are
        archived early, and until every committed record is served.
        """
        problems = []
        try:
            for condition, what in (
                (self._all_served, "a consumer to reach the ends"),
                (self._all_stored, "what is closed, or archived early, to be stored"),
            ):
                wait_until(condition, CATCH_UP_SECONDS, what, ASK_SECONDS)
        except AssertionError as error:
            problems.append(f"{error}: {self._distances()}")
        if self.served.error is not None:
            problems.append(f"the consumer failed: {self.served.error!r}")
        return problems

    def _all_served(self) -> bool:
        try:
            ends = high_watermarks(self.scene.cluster.bootstrap_servers, PARTITIONS)
        except KafkaException:
            return False
        return all(self.served.position(tp) >= end for tp, end in ends.items())

    def _all_stored(self) -> bool:
        ends = {tp: self.scene.closed_end(tp) for tp in ALL_PARTITIONS}
        early = [tp for tp in ALL_PARTITIONS if tp[0] in self.scene.early.topics]
        try:
            ends |= high_watermarks(self.scene.cluster.bootstrap_servers, early)
        except KafkaException:
            return False
        self.ends = {tp: end or 0 for tp, end in ends.items()}
        return None not in ends.values() and all(
            self.observer.next_offset(tp) >= end and not self.observer.is_waiting(tp)
            for tp, end in self.ends.items()
        )

    def _distances(self) -> dict[str, tuple[int, int, int]]:
        """By partition: archive end offset, the end that is to be stored, and the served position
        (-1 for a partition that is not followed).
        """
        return {
            f"{tp[0]}-{tp[1]}": (
                self.observer.next_offset(tp),
                self.ends.get(tp, 0),
                self.served.position(tp) if tp in PARTITIONS else -1,
            )
            for tp in ALL_PARTITIONS
        }

    def end(self) -> list[str]:
        """Stop the sidecars, look at the store once more, and read all logs."""
        problems = [*self._stop_sidecars()]
        self.served.stop()
        self.observer.stop()
        self.observer.look()
        self.observer.check_covered()
        problems += self.observer.waiting()
        self.expired = sum(self._first_offset(tp) for tp in PARTITIONS)
        for broker in self.scene.cluster.broker_ids:
            process = self.scene.cluster.process_of(broker)
            if not process.running:
                problems.append(f"broker {broker} has ended by itself\n{process.log_tail()}")
            with process.command.log.open(errors="replace") as lines:
                said = list(lines)
            problems += [f"broker {broker}: {line}" for line in broker_errors(said, self._broken)]
            self.markers_skipped |= skipped_markers(said)
            events = list(self.scene.sidecar_events(broker))
            self.parts += sum(bool(event.get("early")) for event in events)
            self.trims_held += sum(
                event["event"] == "local_retention.held" and event["reason"] == "transaction_open"
                for event in events
            )
            problems += sidecar_gaps(
                broker,
                events,
                may_diverge=UNCLEAN,
                may_have_gaps=SHORTENED,
            )
        return problems

    def _stop_sidecars(self) -> Iterator[str]:
        for broker, sidecar in self.scene.sidecars.items():
            process = sidecar.process
            if not process.running:
                code = process.returncode
                yield f"the sidecar of {broker} ended by itself: {code}\n{process.log_tail()}"
            elif (code := sidecar.stop()) != 0:
                yield f"the sidecar of {broker} ended with {code}\n{process.log_tail()}"

    def _first_offset(self, tp: Partition) -> int:
        """The first offset that brokers still hold."""
        directories = (self.scene.directory_of(broker, tp) for broker in BROKERS)
        bases = [base for path in directories if path is not None for base in log_bases(path)]
        return min(bases, default=0)
