"""Fakes of a broker that answers Metadata requests, and of a ZooKeeper ensemble."""

import json
from collections.abc import Callable, Iterable
from threading import Condition

from kazoo.exceptions import ConnectionLoss

from sidetier.leadership.kraft.metadata_request import MetadataAnswer
from sidetier.leadership.port import LeadershipView
from sidetier.leadership.zookeeper.client import (
    Children,
    Data,
    Failed,
    Missing,
    OnFired,
    OnOutcome,
    Outcome,
    Session,
)
from sidetier.leadership.zookeeper.tree import TOPICS_PATH, state_path, topic_path
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import TopicPartition
from tests.harness.waiting import wait_until


class ViewRecorder:
    """A listener that stores each view."""

    def __init__(self) -> None:
        self.views: list[LeadershipView] = []

    def __call__(self, view: LeadershipView) -> None:
        self.views.append(view)

    @property
    def last(self) -> LeadershipView:
        return self.views[-1] if self.views else LeadershipView()

    def wait_for(self, leads: Iterable[TopicPartition], timeout: float = 30.0) -> LeadershipView:
        """Wait until the last view is known and has exactly these partitions."""
        wanted = set(leads)
        wait_until(
            lambda: self.last.known and self.last.leads.keys() == wanted,
            timeout,
            f"a view of {sorted(wanted)[:5]} (of {len(wanted)})",
        )
        return self.last

    def wait_until_unknown(self, timeout: float = 30.0) -> None:
        wait_until(lambda: self.views and not self.last.known, timeout, "an unknown view")


class FakeMetadataRequest:
    """Metadata requests to a broker that answers, is silent, delays its answer, or fails."""

    def __init__(self, leads: Iterable[TopicPartition] = (), cluster_id: str | None = None) -> None:
        self._changed = Condition()
        self._leads = frozenset(leads)
        self._cluster_id = cluster_id
        self._silent = False
        self._held = False
        self._error: BaseException | None = None
        self.asked = 0
        self.closed = False

    def says(self, *leads: TopicPartition) -> None:
        with self._changed:
            self._leads = frozenset(leads)

    def be_silent(self, *, silent: bool = True) -> None:
        with self._changed:
            self._silent = silent

    def hold(self, *, held: bool = True) -> None:
        """Delay all answers. Each delayed answer has the state at the time of its request."""
        with self._changed:
            self._held = held
            self._changed.notify_all()

    def fail(self, error: BaseException | None) -> None:
        """Raise an error that no request should raise, until the test changes it."""
        with self._changed:
            self._error = error

    def ask(self) -> MetadataAnswer:
        with self._changed:
            self.asked += 1
            leads, silent = self._leads, self._silent
            self._changed.wait_for(lambda: not self._held, 10)
            if self._error is not None:
                raise self._error
            if silent:
                raise LeadershipUnavailableError("silent for the test")
            return MetadataAnswer(leads, self._cluster_id)

    def close(self) -> None:
        self.closed = True


class FakeTree:
    """ZooKeeper's tree in memory, as one client sees it: one-shot watches, sessions, ACLs."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.reads: list[str] = []
        self.stopped = 0
        self.refused: set[str] = set()
        """Paths for which a read raises the error in `refusal`."""
        self.refusal: Exception = ConnectionLoss()
        self.withheld: set[str] = set()
        """Paths whose answers are withheld until `answer_late` is called."""
        self._late: list[Callable[[], None]] = []
        self._watched: set[str] = set()
        self._on_session: Callable[[Session], None] = lambda _: None
        self._on_fired: OnFired = lambda _: None

    # Methods for the test

    def create_topic(
        self,
        topic: str,
        leaders: dict[int, int],
        *,
        replicas: tuple[int, ...] = (1, 2),
        topic_id: str | None = "AAAAAAAAAAAAAAAAAAAAAQ",
    ) -> None:
        """Create the topic's node, then the list, then the states; each step fires its watches."""
        node = {"version": 3, "partitions": {str(p): list(replicas) for p in leaders}}
        if topic_id is not None:
            node["topic_id"] = topic_id
        self.put(topic_path(topic), json.dumps(node).encode())
        for partition, leader in leaders.items():
            self.elect(TopicPartition(topic, partition), leader)

    def elect(self, partition: TopicPartition, leader: int, epoch: int = 0) -> None:
        state = {"leader": leader, "leader_epoch": epoch, "isr": [1], "version": 1}
        self.put(state_path(partition), json.dumps(state).encode())

    def delete_topic(self, topic: str) -> None:
        for path in sorted(self.nodes, reverse=True):
            if path == topic_path(topic) or path.startswith(topic_path(topic) + "/"):
                self.remove(path)

    def put(self, path: str, data: bytes) -> None:
        created = path not in self.nodes
        self.nodes[path] = data
        self._fire(path)
        if created and path.rpartition("/")[0] == TOPICS_PATH:
            self._fire(TOPICS_PATH)

    def remove(self, path: str) -> None:
        del self.nodes[path]
        self._fire(path)
        if path.rpartition("/")[0] == TOPICS_PATH:
            self._fire(TOPICS_PATH)

    def session(self, *states: Session) -> None:
        """Pass through these session states. The watches are lost with the connection."""
        for state in states:
            if state is not Session.CONNECTED:
                self._watched.clear()
            self._on_session(state)

    def answer_late(self) -> None:
        """Deliver the withheld answers, with the state at the time of their requests."""
        late, self._late = self._late, []
        for answer in late:
            answer()

    # Methods for the leadership source

    def start(self, on_session: Callable[[Session], None], on_fired: OnFired) -> None:
        self._on_session, self._on_fired = on_session, on_fired

    def read(self, path: str, on_outcome: OnOutcome) -> None:
        data = self.nodes.get(path)
        self._answer(path, on_outcome, Missing() if data is None else Data(data))

    def read_children(self, path: str, on_outcome: OnOutcome) -> None:
        prefix = path + "/"
        names = {node[len(prefix) :].partition("/")[0] for node in self.nodes if prefix in node}
        self._answer(path, on_outcome, Children(tuple(names)))

    def stop(self) -> None:
        self.stopped += 1

    def _answer(self, path: str, on_outcome: OnOutcome, outcome: Outcome) -> None:
        self.reads.append(path)
        self._watched.add(path)
        if path in self.refused:
            outcome = Failed(self.refusal)
        if path in self.withheld:
            self._late.append(lambda: on_outcome(outcome))
        else:
            on_outcome(outcome)

    def _fire(self, path: str) -> None:
        if path in self._watched:
            self._watched.remove(path)
            self._on_fired(path)
