"""The ZooKeeper source: reads the tree once, then each node whose watch fires."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import structlog
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError

from sidetier.leadership.port import LeadershipView, Unreadable, ViewListener
from sidetier.leadership.settings import ZookeeperSettings
from sidetier.leadership.worker import Mailbox, ViewPublisher, Worker
from sidetier.leadership.zookeeper.client import (
    Children,
    Data,
    Failed,
    KazooTreeClient,
    Outcome,
    Session,
    TreeClient,
)
from sidetier.leadership.zookeeper.tree import (
    CLUSTER_ID_PATH,
    TOPICS_PATH,
    TopicTree,
    parse_cluster_id,
    parse_path,
    parse_state,
    parse_topic,
)
from sidetier.segments.backoff import backoff
from sidetier.segments.errors import ConfigurationError, LeadershipError
from sidetier.segments.offsets import TopicPartition

_log = structlog.get_logger(__name__)
_MAX_IN_FLIGHT = 1000
_BURST_SECONDS = 0.05
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_ESSENTIAL = frozenset({CLUSTER_ID_PATH, TOPICS_PATH})
"""Nodes that must have been read before any view is known."""
_CONNECTION_ERRORS = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)


@dataclass(frozen=True, slots=True)
class _Fired:
    """A watch fired."""

    path: str


@dataclass(frozen=True, slots=True)
class _Read:
    """A node was read, over the connection with this generation number."""

    generation: int
    path: str
    outcome: Outcome


_Message = Session | _Fired | _Read


class ZookeeperLeadership:
    """A `LeadershipSource` for a broker in ZooKeeper mode.

    A lost connection removes all watches. So after each new connection, of the same session or of
    another one, the source reads the whole tree again. Until it has done so, the last view stays
    valid for one session timeout after the loss of the connection; then the view is unknown.

    A node that cannot be read or parsed affects only its own topic or partition: the source keeps
    that topic's or partition's last known state, and reads the node again after a growing pause.
    """

    def __init__(
        self,
        settings: ZookeeperSettings,
        *,
        client: TreeClient | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client = client or KazooTreeClient(settings)
        self._clock = clock
        self._publisher = ViewPublisher()
        self._mailbox: Mailbox[_Message] = Mailbox()
        self._worker = Worker("leadership-zookeeper", self._run)
        self._tree = TopicTree(settings.broker_id)
        self._generation = 0
        self._pending: OrderedDict[str, None] = OrderedDict()
        self._reading: Counter[str] = Counter()
        self._connected = False
        self._unsure_since: float | None = None
        self._unreadable: dict[str, Unreadable] = {}
        self._read_again: dict[str, float] = {}
        self._shown: tuple[int, int, tuple[Unreadable, ...]] | None = None
        self._shown_at = 0.0

    def start(self, listener: ViewListener) -> None:
        """Start to connect and to deliver views.

        Raises:
            ConfigurationError: The address or the credentials are unusable.
        """
        self._unsure_since = self._clock()
        # The mailbox keeps what comes before the worker runs.
        self._client.start(self._mailbox.post, lambda path: self._mailbox.post(_Fired(path)))
        self._publisher.open(listener)
        self._worker.start()

    def view(self) -> LeadershipView:
        """Return the latest view."""
        return self._publisher.view

    def failure(self) -> BaseException | None:
        """Return why the thread died; None while it lives."""
        return self._worker.failure

    def stop(self) -> None:
        """Stop delivering views and end the session."""
        self._publisher.close()
        self._mailbox.close()
        # Before the client stops: the worker still uses it.
        self._worker.join()
        self._client.stop()

    def _run(self) -> None:
        while not self._mailbox.closed:
            for message in self._mailbox.take(self._pause()):
                self._handle(message)
            self._read_unreadable_again()
            self._send_reads()
            self._publish()

    def _pause(self) -> float | None:
        """Return the seconds until the last view expires or an unreadable node is read again.

        None if only a message can change anything.
        """
        now = self._clock()
        moments = list(self._read_again.values())
        if self._unsure_since is not None:
            unknown_at = self._unsure_since + self._settings.session_timeout
            moments += [unknown_at] if unknown_at > now else []
        return max(0.0, min(moments) - now) if moments else None

    def _handle(self, message: _Message) -> None:
        match message:
            case Session():
                self._change_session(message)
            case _Fired(path):
                # A watch cannot be removed: watches of partitions that moved away still fire.
                if self._is_of_interest(path):
                    self._pending[path] = None
            case _Read(generation, path, outcome) if generation == self._generation:
                # A count, not a flag: a watch that fires during
                # a read leads to a second one for the same node.
                self._reading[path] -= 1
                if not self._reading[path]:
                    del self._reading[path]
                self._take(path, outcome)
            case _:
                pass  # response over an earlier connection

    def _change_session(self, session: Session) -> None:
        _log.info("leadership.zookeeper_session", state=session.value)
        if session is Session.REFUSED:
            raise LeadershipError(
                f"ZooKeeper at {self._settings.connect} rejects the credentials (SASL or auth)"
            )
        # Responses over the old connection are ignored from now on: their watches are gone.
        self._generation += 1
        self._reading.clear()
        self._pending.clear()
        self._unreadable.clear()
        self._read_again.clear()
        self._connected = session is Session.CONNECTED
        # Only the first loss counts: repeated reconnects must not keep an old view valid.
        if self._unsure_since is None:
            self._unsure_since = self._clock()
        if self._connected:
            # A new tree: nodes that were deleted while the connection was lost fire no watch.
            self._tree = TopicTree(self._settings.broker_id)
            self._pending[CLUSTER_ID_PATH] = None
            self._pending[TOPICS_PATH] = None

    def _is_of_interest(self, path: str) -> bool:
        about = parse_path(path)
        return not isinstance(about, TopicPartition) or self._tree.hosts(about)

    def _read_unreadable_again(self) -> None:
        now = self._clock()
        for path in [path for path, due in self._read_again.items() if due <= now]:
            del self._read_again[path]
            self._pending[path] = None

    def _send_reads(self) -> None:
        in_flight = self._reading.total()
        while self._connected and self._pending and in_flight < _MAX_IN_FLIGHT:
            # The oldest first: a node that changes all the time must not hold back the others.
            path, _ = self._pending.popitem(last=False)
            self._reading[path] += 1
            in_flight += 1
            read = self._client.read_children if path == TOPICS_PATH else self._client.read
            read(path, partial(self._post_read, self._generation, path))

    def _post_read(self, generation: int, path: str, outcome: Outcome) -> None:
        self._mailbox.post(_Read(generation, path, outcome))

    def _take(self, path: str, outcome: Outcome) -> None:
        if isinstance(outcome, Failed) and isinstance(outcome.error, _CONNECTION_ERRORS):
            return  # a session change follows, after which everything is read again
        try:
            self._take_in(path, outcome)
        # Another cluster: that concerns more than this node, and ends the source.
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - affects only this node; read again later
            self._hold(path, error)
        else:
            self._unreadable.pop(path, None)
            self._read_again.pop(path, None)

    def _hold(self, path: str, error: Exception) -> None:
        before = self._unreadable.get(path)
        failures = 1 if before is None else before.failures + 1
        same = before is not None and before.error == str(error)
        self._unreadable[path] = Unreadable(type(error).__name__, str(error), failures)
        self._read_again[path] = self._clock() + backoff(failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        _log.error(
            "leadership.node_unreadable",
            path=path,
            failures=failures,
            error=str(error),
            exc_info=None if same else error,
        )

    def _take_in(self, path: str, outcome: Outcome) -> None:
        if isinstance(outcome, Failed):
            raise LeadershipError(
                f"ZooKeeper node {path} cannot be read: {outcome.error!r}"
            ) from outcome.error
        about = parse_path(path)
        data = outcome.data if isinstance(outcome, Data) else None
        if isinstance(about, TopicPartition):
            self._tree.state_read(about, None if data is None else parse_state(path, data))
        elif about is not None:
            node = None if data is None else parse_topic(path, data)
            self._read_next(self._tree.topic_read(about, node))
        elif path == TOPICS_PATH:
            names = outcome.names if isinstance(outcome, Children) else ()
            self._read_next(self._tree.listed(names))
        elif data is not None:
            self._check_cluster(parse_cluster_id(data))

    def _read_next(self, paths: list[str]) -> None:
        self._pending.update(dict.fromkeys(paths))

    def _check_cluster(self, cluster_id: str) -> None:
        expected = self._settings.cluster_id
        if expected is not None and cluster_id != expected:
            raise ConfigurationError(
                f"ZooKeeper at {self._settings.connect} has cluster {cluster_id}, but the log "
                f"dirs belong to cluster {expected}; check zookeeper.connect and its chroot"
            )

    def _publish(self) -> None:
        """Publish the state; while further responses are pending, only every 50 ms."""
        now = self._clock()
        complete = self._connected and self._has_read_all()
        if complete:
            self._unsure_since = None
        if self._unsure_since is not None:
            if now - self._unsure_since >= self._settings.session_timeout:
                self._publisher.publish(LeadershipView(unreadable=dict(self._unreadable)))
                self._shown = None
        # A burst of events (a controlled shutdown moves
        # thousands of partitions) is shown in a few views.
        elif complete or now - self._shown_at >= _BURST_SECONDS:
            self._show(now)

    def _has_read_all(self) -> bool:
        """Return whether all nodes were read, except for unreadable ones that are not essential."""
        if self._unreadable.keys() & _ESSENTIAL:
            return False
        return all(path in self._unreadable for path in chain(self._pending, self._reading))

    def _show(self, now: float) -> None:
        shown = (self._generation, self._tree.changes, tuple(self._unreadable.values()))
        if shown != self._shown:
            self._shown, self._shown_at = shown, now
            view = replace(self._tree.view(), unreadable=dict(self._unreadable))
            self._publisher.publish(view)
