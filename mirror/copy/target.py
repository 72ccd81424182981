"""The target of a mirror: raw batches and the progress of their source, in one transaction.

Effects of a kill at each step of a transaction:

- Before EndTxn is answered with success, the coordinator aborts the transaction: read-committed
  consumers see none of its records, and the group has the progress of the previous transaction.
- During EndTxn, the coordinator may or may not have decided. The next `start` waits for the
  decision, and `progress` waits for stable offsets, so that both records and progress are seen, or
  neither.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeVar

import structlog
from kio.schema.errors import ErrorCode

from sidetier.segments.batches import Producer, next_sequence, set_producer
from sidetier.segments.errors import (
    BrokerError,
    ConfigurationError,
    DamagedSegmentError,
    KafkaApiError,
    MalformedResponseError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.wire.cluster import AnyBroker, Cluster, TransactionCoordinator
from sidetier.wire.connection import Connection
from sidetier.wire.protocol import ApiKey, api_error, missing_permission
from sidetier.wire.record_requests import receive_produced, send_produce
from sidetier.wire.requests import (
    NO_MEMBER,
    CommittedOffset,
    Membership,
    add_offsets_to_txn,
    add_partitions_to_txn,
    commit_offsets,
    commit_offsets_in_txn,
    committed_offsets,
    end_txn,
    init_producer_id,
    list_transactions,
)

log = structlog.get_logger("sidetier.mirror")

_T = TypeVar("_T")
TRANSACTION_TIMEOUT: Final = 60.0
MAX_REQUEST_BYTES: Final = 16 << 20
"""Maximum bytes of the batches in one Produce request; each batch must also fit
`max.message.bytes`.
"""
_ABORT_TASKS_SECONDS: Final = 10.0
_MAX_IN_FLIGHT: Final = 16
"""A request is never sent again, so brokers need to remember only the last sequence number."""
_FENCED: Final = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
ABORTABLE: Final = _FENCED | {
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.duplicate_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.operation_not_attempted,
    ErrorCode.transactional_id_not_found,
    ErrorCode.transaction_abortable,
}
"""Errors after which the transaction is aborted and its records are read again. The broker answers
a transaction that has timed out with the same error as a fenced producer; `start` finds out which
one it is.
"""
TOO_LARGE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
"""Errors for a batch above `max.message.bytes` or `segment.bytes` of the target topic."""
_OF_ONE_PARTITION: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.operation_not_attempted,
        ErrorCode.topic_authorization_failed,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors of a request for several partitions that may concern only one of them."""
MEMBERSHIP_LOST: Final = frozenset(
    {
        ErrorCode.fenced_instance_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.unknown_member_id,
    }
)
"""Errors for a worker that may have lost its partitions (KIP-447). A worker can join the group
again. A Spark task cannot, because it uses the driver's membership.
"""


class OutgoingBatch(NamedTuple):
    """A batch for the target.

    Attributes:
        tp: The target partition.
        data: The whole batch; the memory is writable.
        source_offsets: The source offset of each record, in order.
    """

    tp: TopicPartition
    data: memoryview
    source_offsets: range | tuple[Offset, ...]


class Written(NamedTuple):
    """A batch that the target has acknowledged.

    Attributes:
        tp: The target partition.
        source_offsets: The source offset of each record, in order.
        target_offset: The target offset of the first record.
    """

    tp: TopicPartition
    source_offsets: range | tuple[Offset, ...]
    target_offset: Offset


class RefusedBatchError(KafkaApiError):
    """The target's brokers refuse a batch of one partition."""

    def __init__(self, error: KafkaApiError, batch: OutgoingBatch) -> None:
        super().__init__(str(error), code=error.code, name=error.name, retry=error.retry)
        self.batch = batch


class DamagedBatchError(DamagedSegmentError):
    """A batch of one partition does not have its CRC, so it was not sent."""

    def __init__(self, error: DamagedSegmentError, batch: OutgoingBatch) -> None:
        super().__init__(str(error))
        self.batch = batch


class Target(Protocol):
    """Where the engine writes. Every method may raise a BrokerError or a MirrorError."""

    @property
    def is_transactional(self) -> bool:
        """Whether records and progress become visible together."""
        ...

    def start(self) -> None:
        """Become the only producer of this worker; abort the transaction that an earlier one left
        open.

        Raises:
            ProducerFencedError: Another process of this worker has started since.
        """
        ...

    def progress(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the next source offset of each target partition that has progress."""
        ...

    def send(self, batches: Iterable[OutgoingBatch]) -> None:
        """Send batches in order within each partition; begin a transaction if none is open.

        Raises:
            RefusedBatchError: The brokers refuse a batch that was sent before.
            DamagedBatchError: A batch does not have its CRC.
        """
        ...

    def flush(self) -> list[Written]:
        """Wait until all sent batches are acknowledged. Return those since the last call.

        Raises:
            RefusedBatchError: The brokers refuse a batch.
        """
        ...

    def commit(self, progress: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Make the flushed records visible together with the progress."""
        ...

    def close(self) -> None:
        """Close the connections. The next `start` aborts an open transaction."""
        ...


class KafkaTarget:
    """A cluster as the target of one worker. Implements `Target`; not thread-safe.

    Args:
        cluster: A client of the target's brokers.
        group: The consumer group whose offsets are the progress.
        transactional_id: The worker's transactional id. None for at-least-once: progress is
            committed after the records, and records are copied again after a kill between the two.
        membership: Returns the worker's membership in the group, at each commit: the coordinator
            refuses the progress of a worker that has lost its partitions.
        transaction_timeout: Seconds after which the coordinator aborts a silent transaction.
        rivals: Other transactional ids that write the same partitions. The first `start` fences
            their producers after it has obtained its own producer id.
        task_id: Returns the transactional id with which Spark tasks write a partition. `progress`
            aborts their open transactions. None if no task has ever written.
    """

    def __init__(  # noqa: PLR0913 -- four have a default
        self,
        cluster: Cluster,
        group: str,
        transactional_id: str | None,
        *,
        membership: Callable[[], Membership] = lambda: NO_MEMBER,
        transaction_timeout: float = TRANSACTION_TIMEOUT,
        rivals: Callable[[], Collection[str]] = tuple,
        task_id: Callable[[TopicPartition], str] | None = None,
    ) -> None:
        cluster.settings = replace(cluster.settings, max_in_flight=_MAX_IN_FLIGHT)
        self._cluster = cluster
        self._group = group
        self._id = transactional_id
        self._membership = membership
        self._timeout = transaction_timeout
        self._rivals = rivals
        self._task_id = task_id
        self._has_fenced_rivals = False
        self._producer: Producer | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._connections: dict[BrokerId, Connection] = {}
        self._queues: dict[TopicPartition, deque[OutgoingBatch]] = {}
        self._sent: dict[BrokerId, deque[dict[TopicPartition, OutgoingBatch]]] = {}
        self._written: list[Written] = []

    @property
    def is_transactional(self) -> bool:
        """Whether the target has a transactional id."""
        return self._id is not None

    def start(self) -> None:
        """Obtain a producer id with new connections; the first call also fences `rivals`."""
        # Answers of the former transaction must not be taken for those of the next one.
        self._drop_connections()
        self._queues.clear()
        self._written.clear()
        self._sequences.clear()
        self._added.clear()
        self._producer = self._new_producer()
        if not self._has_fenced_rivals:
            # After our own id: of two processes that start at the same time, at least one is
            # fenced.
            for rival in self._rivals():
                init_producer_id(self._cluster, rival, transaction_timeout=self._timeout)
            self._has_fenced_rivals = True

    def _new_producer(self) -> Producer:
        """Get a producer id and epoch; for a transactional id, this fences the former producer."""
        former = self._producer if self._id is not None else None
        try:
            response = self._cluster.request(
                AnyBroker() if self._id is None else TransactionCoordinator(self._id),
                ApiKey.INIT_PRODUCER_ID,
                transactional_id=self._id,
                transaction_timeout=round(self._timeout * 1000),
                # With the former epoch, the coordinator can distinguish a transaction that has
                # timed out from a producer that was fenced (KIP-360).
                producer_id=-1 if former is None else former.id,
                producer_epoch=-1 if former is None else former.epoch,
            )
        except KafkaApiError as error:
            if former is not None and error.code in _FENCED:
                raise ProducerFencedError(
                    f"another process with the transactional id {self._id} has started: this one "
                    "ends, and its last transaction is complete or aborted. Run one process for "
                    "each --name and --worker"
                ) from error
            if former is not None and error.code == ErrorCode.invalid_producer_id_mapping:
                # The coordinator has forgotten the id, because the producer was silent for long.
                self._producer = None
                self._has_fenced_rivals = False
                return self._new_producer()
            if error.code == ErrorCode.invalid_transaction_timeout:
                raise ConfigurationError(
                    f"the target's brokers refuse a transaction timeout of {self._timeout:g} s: it "
                    "is above their transaction.max.timeout.ms; give a lower "
                    "--transaction-timeout, or raise that setting"
                ) from error
            raise
        return Producer(response.producer_id, response.producer_epoch)

    def progress(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """First abort the open transactions of Spark tasks that write these partitions."""
        if self._task_id is not None:
            self._abort_tasks({self._task_id(tp) for tp in partitions})
        return committed_offsets(self._cluster, self._group, partitions)

    def _abort_tasks(self, ids: Collection[str]) -> None:
        """Abort transactions that Spark tasks have left open and that would only end by timeout.

        This is safe even while a task runs. A transaction has the records and their progress:
        InitProducerId aborts both, or waits until both are committed. So no record is lost or
        copied twice.

        It also does not disturb a task that may still commit. The engine requests the progress
        after the worker has joined the group, and from then on the group coordinator refuses the
        commits of tasks: their membership is of an earlier generation, or fenced. The exception is
        a driver that takes over this worker's name at the same moment. Its tasks then wait, and
        take over after a minute.

        Only open transactions are aborted. The coordinators keep the id of each partition that
        Spark has copied for days, and InitProducerId for all of them would make each rebalance
        slow. If a request fails, the transactions end by timeout.
        """
        try:
            for transaction in list_transactions(
                self._cluster, states=["Ongoing"], timeout=_ABORT_TASKS_SECONDS
            ):
                if transaction.transactional_id in ids:
                    init_producer_id(
                        self._cluster,
                        transaction.transactional_id,
                        transaction_timeout=self._timeout,
                        timeout=_ABORT_TASKS_SECONDS,
                    )
                    log.info("mirror.task_aborted", transactional_id=transaction.transactional_id)
        except UnsupportedVersionError:
            return  # brokers before 3.0 do not list transactions
        except BrokerError as error:
            log.warning("mirror.tasks_not_aborted", reason=str(error))

    def send(self, batches: Iterable[OutgoingBatch]) -> None:
        """Queue the batches, and send until each leader has its requests in flight."""
        for batch in batches:
            self._queues.setdefault(batch.tp, deque()).append(batch)
        self._add_partitions()
        for broker, led in self._for_each(self._cluster.leaders, list(self._queues)).items():
            while any(tp in self._queues for tp in led):
                self._send_request(broker, led)

    def flush(self) -> list[Written]:
        """Receive the responses of one broker after the other."""
        for broker in list(self._sent):
            while self._sent[broker]:
                self._receive(broker)
        written, self._written = self._written, []
        return written

    def commit(self, progress: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit the progress in the transaction; without one, as a member of the group."""
        producer = self._require_producer()
        if self._id is None:
            commit_offsets(self._cluster, self._group, progress, membership=self._membership())
            return
        # First at the transaction coordinator: it has to write its
        # marker to the group's partition of `__consumer_offsets`, too.
        add_offsets_to_txn(self._cluster, self._id, producer, self._group)
        commit_offsets_in_txn(
            self._cluster,
            self._id,
            producer,
            self._group,
            progress,
            membership=self._membership(),
        )
        end_txn(self._cluster, self._id, producer, commit=True)
        # Each transaction names its partitions again.
        self._added.clear()

    def close(self) -> None:
        """Close the connections to leaders and coordinators, and the client."""
        self._drop_connections()
        self._cluster.close()

    def _require_producer(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("start() comes first")
        return self._producer

    def _add_partitions(self) -> None:
        new = [tp for tp in self._queues if tp not in self._added]
        if not new:
            return
        if self._id is not None:
            # Right after EndTxn, the coordinator still writes markers and answers
            # CONCURRENT_TRANSACTIONS, which is retried.
            name, producer = self._id, self._require_producer()
            self._for_each(
                lambda tps: add_partitions_to_txn(self._cluster, name, producer, tps), new
            )
        self._added.update(new)

    def _for_each(
        self, ask: Callable[[list[TopicPartition]], _T], partitions: list[TopicPartition]
    ) -> _T:
        """Ask the brokers for all partitions at once; if they refuse, find out for which one.

        Raises:
            RefusedBatchError: The brokers refuse one partition.
            BrokerError: The brokers refuse for another reason, or none answers.
        """
        try:
            return ask(partitions)
        except KafkaApiError as error:
            if error.code not in _OF_ONE_PARTITION:
                raise
            for tp in partitions:
                try:
                    ask([tp])
                except KafkaApiError as own:
                    raise RefusedBatchError(own, self._queues[tp][0]) from own
            raise

    def _send_request(self, broker: BrokerId, led: Iterable[TopicPartition]) -> None:
        """Send one request with the next batch of each partition, up to `MAX_REQUEST_BYTES`."""
        taken: dict[TopicPartition, OutgoingBatch] = {}
        size = 0
        # One batch of each partition: brokers refuse two of them in one request (error 87).
        for tp in led:
            queue = self._queues.get(tp)
            if queue is None or (taken and size + len(queue[0].data) > MAX_REQUEST_BYTES):
                continue
            taken[tp] = queue.popleft()
            size += len(taken[tp].data)
            if not queue:
                del self._queues[tp]
        producer = self._require_producer()
        for tp, batch in taken.items():
            sequence = self._sequences.get(tp, 0)
            try:
                set_producer(batch.data, producer, sequence, transactional=self._id is not None)
            except DamagedSegmentError as error:
                raise DamagedBatchError(error, batch) from error
            self._sequences[tp] = next_sequence(sequence, len(batch.source_offsets))
        connection = self._connection(broker)
        sent = self._sent.setdefault(broker, deque())
        # Responses are read only when the pipeline is full, so that sending does not wait for
        # acknowledgements.
        while connection.in_flight >= _MAX_IN_FLIGHT:
            self._receive(broker)
        send_produce(
            connection,
            [(tp, batch.data) for tp, batch in taken.items()],
            transactional_id=self._id,
            timeout=self._timeout / 2,
        )
        sent.append(taken)

    def _receive(self, broker: BrokerId) -> None:
        answers = receive_produced(self._connections[broker])
        sent = self._sent[broker].popleft()
        for answer in answers:
            batch = sent.pop(answer.partition)
            if answer.error_code:
                error = self._refusal(answer.partition, answer.error_code, answer.message)
                raise RefusedBatchError(error, batch)
            self._written.append(Written(batch.tp, batch.source_offsets, answer.base_offset))
        if sent:  # not known to be written, so it must not be committed
            raise MalformedResponseError(f"broker {broker} does not answer Produce to {min(sent)}")

    def _refusal(self, tp: TopicPartition, code: int, message: str | None) -> KafkaApiError:
        self._cluster.forget_leaders([tp])
        detail = missing_permission(ApiKey.PRODUCE, code) or message
        return api_error(f"the target's brokers refuse Produce to {tp}", code, detail)

    def _connection(self, broker: BrokerId) -> Connection:
        known = self._connections.get(broker)
        if known is None or known.is_closed:
            known = self._connections[broker] = self._cluster.connect(broker)
        return known

    def _drop_connections(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._sent.clear()
