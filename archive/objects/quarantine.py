"""`plan.json`: which segments a move to quarantine or to the retired archives takes.

The plan is in the folder to which the sidecar moves segments:
`_sidetier/<cluster>/quarantine/<topic>-<partition>/<name>/` or `_sidetier/<cluster>/retired/…`.
Until `offset.wm` names it as `pending`, it is an intent that no sidecar has to follow. Afterwards
any sidecar that loads the archive finishes the move.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import Any, Final

from sidetier.archive.objects.watermark import UNKNOWN_BROKER
from sidetier.segments.errors import (
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.json_text import parse_versioned
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, RemoteStorage

PLAN_NAME: Final = "plan.json"
_VERSION: Final = 1


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


def encode_plan(plan: MovePlan) -> bytes:
    """Encode the object."""
    topic, partition = plan.topic_partition
    cut = plan.cut
    fields = {
        "version": _VERSION,
        "kind": plan.kind.value,
        "topic": topic,
        "partition": partition,
        "target": plan.target,
        "next_offset": plan.next_offset,
        "kept": plan.kept,
        "cut": None if cut is None else {"base_offset": cut.base_offset, "size": cut.size},
        "leader_epoch": plan.leader_epoch,
        "broker_id": plan.broker_id,
        "watermark": plan.watermark,
        "reason": plan.reason,
    }
    return json.dumps(fields, sort_keys=True, indent=1).encode()


def decode_plan(data: bytes, key: str) -> MovePlan:
    """Decode the plan in an object; `key` is for errors.

    Raises:
        MalformedObjectError: The bytes are no plan, or a plan of an unknown version.
    """
    try:
        return _from_fields(parse_versioned(data, _VERSION, key))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise MalformedObjectError(
            f"{key}: no plan of a move ({type(error).__name__}: {error}); it begins {data[:60]!r}"
        ) from None


def _from_fields(fields: dict[str, Any]) -> MovePlan:
    kept, cut = fields["kept"], fields["cut"]
    return MovePlan(
        kind=MoveKind(fields["kind"]),
        topic_partition=TopicPartition(str(fields["topic"]), int(fields["partition"])),
        target=str(fields["target"]),
        next_offset=Offset(int(fields["next_offset"])),
        kept=None if kept is None else BaseOffset(int(kept)),
        cut=None if cut is None else Cut(BaseOffset(int(cut["base_offset"])), int(cut["size"])),
        leader_epoch=LeaderEpoch(int(fields["leader_epoch"])),
        broker_id=BrokerId(int(fields["broker_id"])),
        watermark=fields["watermark"],
        reason=str(fields["reason"]),
    )


def read_plan(store: RemoteStorage, prefix: str) -> MovePlan | None:
    """Read the plan in the folder with this prefix; None if there is none. One request.

    Raises:
        MalformedObjectError: It does not parse.
        StorageError: As `RemoteStorage` says.
    """
    key = prefix + PLAN_NAME
    try:
        return decode_plan(store.get_object(key).data, key)
    except ObjectNotFoundError:
        return None


def read_pending_plan(store: RemoteStorage, prefix: str) -> MovePlan:
    """Read the plan that `offset.wm` names as `pending`. One request.

    Raises:
        MalformedObjectError: There is none, or it does not parse.
        StorageError: As `RemoteStorage` says.
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

    Raises:
        StorageError: As `RemoteStorage` says.
    """
    for target in _targets(plan.target):
        wanted = replace(plan, target=target)
        body = BytesBody(encode_plan(wanted))
        try:
            store.put_object(target + PLAN_NAME, body, condition=IfAbsent())
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
