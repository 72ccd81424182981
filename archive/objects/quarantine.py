"""`plan.json`: which segments a move to quarantine or to the retired archives takes.

The plan is in the folder to which the sidecar moves segments:
`_sidetier/<cluster>/quarantine/<topic>-<partition>/<name>/` or `_sidetier/<cluster>/retired/…`.
Until `offset.wm` names it as `pending`, it is an intent that no sidecar has to follow. Afterwards
any sidecar that loads the archive finishes the move.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import count
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.archive.objects.watermark import UNKNOWN_BROKER
from sidetier.segments.errors import (
    MalformedObjectError,
    PreconditionFailedError,
)
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage

PLAN_NAME: Final = "plan.json"


class MoveKind(StrEnum):
    """Why segments are moved."""

    QUARANTINE = "quarantine"
    """The cluster has discarded their records in an unclean election."""
    RETIRE = "retire"
    """They belong to a topic that was deleted or recreated."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The segment that holds the divergence offset. Its first `size` bytes stay."""

    base_offset: BaseOffset
    size: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Move everything above `kept`, except the first part of the segment that is `cut`.

    Without `kept` and `cut` nothing stays.

    Attributes:
        kind: Why segments are moved.
        topic_partition: The partition.
        target: Key prefix to which segments are moved. Ends with a slash.
        next_offset: The archive end offset after the move.
        kept: Base offset of the last segment that stays whole.
        cut: The segment that stays in part.
        leader_epoch: Leader epoch of the sidecar that planned the move.
        broker_id: Broker of the sidecar that planned the move.
        watermark: Text of `offset.wm` before the move; None if there was none.
        reason: Why, in words.
    """

    kind: MoveKind
    topic_partition: TopicPartition
    target: str
    next_offset: Offset
    kept: BaseOffset | None = None
    cut: Cut | None = None
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    broker_id: BrokerId = UNKNOWN_BROKER
    watermark: str | None = None
    reason: str = ""

    @property
    def whole(self) -> bool:
        """Whether nothing stays."""
        return self.kept is None and self.cut is None

    @property
    def moved_to(self) -> tuple[BaseOffset, Offset]:
        """`base_offset` and `next_offset` of `offset.wm` during the move, below all moved objects.

        The two are equal if nothing is archived below.
        """
        end = self.next_offset if self.cut is None else Offset(self.cut.base_offset)
        # Nothing is archived below: base and end are equal,
        # which only an `offset.wm` with `pending` may have.
        return (BaseOffset(end) if self.kept is None else self.kept), end

    @property
    def final_base(self) -> BaseOffset | None:
        """Base offset of the last segment that stays."""
        return self.kept if self.cut is None else self.cut.base_offset

    def moves(self, base: BaseOffset) -> bool:
        """Return whether a segment is moved as a whole."""
        if self.cut is not None and base == self.cut.base_offset:
            return False
        return self.kept is None or base > self.kept


def quarantine_name(divergence: Offset, epoch: LeaderEpoch) -> str:
    """Return the name of a quarantine folder: the divergence offset, and the epoch that found
    it.
    """
    return f"{divergence:020d}-epoch-{epoch}"


def retired_name(topic_id: str | None, base: BaseOffset | None) -> str:
    """Return the name of a retired archive's folder: its topic id, or else its last base offset."""
    if topic_id is not None:
        return topic_id
    return "unknown" if base is None else f"unknown-{base:020d}"


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    kind: MoveKind
    topic: str
    partition: int
    target: str
    next_offset: Offset
    kept: BaseOffset | None
    cut: Cut | None
    leader_epoch: LeaderEpoch
    broker_id: BrokerId
    watermark: str | None
    reason: str

    def plan(self) -> MovePlan:
        """Return the plan."""
        return MovePlan(
            self.kind,
            TopicPartition(self.topic, self.partition),
            self.target,
            self.next_offset,
            self.kept,
            self.cut,
            self.leader_epoch,
            self.broker_id,
            self.watermark,
            self.reason,
        )


_CODEC: Final = JsonCodec(_StoredPlan, "the plan of a move")


def encode_plan(plan: MovePlan) -> bytes:
    """Encode the object."""
    fields = asdict(plan)
    topic, partition = fields.pop("topic_partition")
    return _CODEC.encode(fields | {"topic": topic, "partition": partition}, indent=1)


def decode_plan(data: bytes, key: str) -> MovePlan:
    """Decode the plan in an object; `key` is for errors.

    Raises:
        MalformedObjectError: The bytes are not a plan, or a plan of an unknown version.
    """
    return _CODEC.decode(data, key).plan()


def read_plan(store: RemoteStorage, prefix: str) -> MovePlan | None:
    """Read the plan in the folder with this prefix; None if there is none. One request.

    Raises:
        MalformedObjectError: It does not parse.
    """
    stored = _CODEC.read(store, prefix + PLAN_NAME)
    return None if stored is None else stored.value.plan()


def read_pending_plan(store: RemoteStorage, prefix: str) -> MovePlan:
    """Read the plan that `offset.wm` names as `pending`. One request.

    Raises:
        MalformedObjectError: There is none, or it does not parse.
    """
    plan = read_plan(store, prefix)
    if plan is None:
        raise MalformedObjectError(
            f"{prefix}{PLAN_NAME} does not exist, but a watermark names it as pending"
        )
    return plan


def write_plan(store: RemoteStorage, plan: MovePlan) -> MovePlan:
    """Write a plan at its target, or at `<target>.2/`, `.3/`, ... if another plan is stored there.

    A stored plan for the same `offset.wm` is the same intent, from an earlier attempt: it is used.
    A kill right after the write leaves an intent, which the next attempt finds.

    Returns:
        The plan with the target under which it is stored.
    """
    for target in _targets(plan.target):
        wanted = replace(plan, target=target)
        body = BytesBody(encode_plan(wanted))
        try:
            store.put_object(target + PLAN_NAME, body, PutOptions(condition=IfAbsent()))
        except PreconditionFailedError:
            if not _is_same_intent(store, target, wanted):
                continue
        return wanted
    raise AssertionError("count() does not end")


def _targets(first: str) -> Iterator[str]:
    yield first
    yield from (f"{first.removesuffix('/')}.{number}/" for number in count(2))


def _is_same_intent(store: RemoteStorage, prefix: str, wanted: MovePlan) -> bool:
    """Compare with the stored plan, except for the writer and its reason."""
    try:
        stored = read_plan(store, prefix)
    except MalformedObjectError:
        return False
    if stored is None:
        return False
    return replace(stored, reason=wanted.reason, broker_id=wanted.broker_id) == wanted
