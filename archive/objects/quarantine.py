"""`plan.json`: which segments a move to quarantine or to the retired archives takes.

The plan is in the folder to which it moves segments:
`_sidetier/<cluster>/quarantine/<topic>-<partition>/<name>/` or `_sidetier/<cluster>/retired/…`.
Until `offset.wm` names it as `pending`, it is an intent that nobody has to follow. Afterwards any
sidecar that loads the archive finishes the move.
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
    """Why something is set aside."""

    QUARANTINE = "quarantine"
    """The cluster has thrown it away: an unclean election."""
    RETIRE = "retire"
    """It belongs to a topic that is no more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The segment that holds the fork: its first `size` bytes stay."""

    base_offset: BaseOffset
    size: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Set aside everything above `kept`, but for the first part of the segment that is `cut`.

    `target` is a prefix of keys that ends in a slash. `next_offset` is where the archive ends
    afterwards; `kept` is the last segment that stays whole. Without `kept` and `cut` nothing stays.
    `leader_epoch` is the epoch in whose name it was planned; `watermark` the text of `offset.wm` as
    it was, None where there was none.
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
        """Nothing stays."""
        return self.kept is None and self.cut is None

    @property
    def moved_to(self) -> tuple[BaseOffset, Offset]:
        """Base and next offset of the watermark while objects are being moved: before all of them.

        Equal where nothing lies below.
        """
        end = self.next_offset if self.cut is None else Offset(self.cut.base_offset)
        return (BaseOffset(end) if self.kept is None else self.kept), end

    @property
    def final_base(self) -> BaseOffset | None:
        """Base offset of the last segment that stays."""
        return self.kept if self.cut is None else self.cut.base_offset

    def moves(self, base: BaseOffset) -> bool:
        """Whether a segment goes as a whole."""
        if self.cut is not None and base == self.cut.base_offset:
            return False
        return self.kept is None or base > self.kept


def quarantine_name(divergence: Offset, epoch: LeaderEpoch) -> str:
    """What the folder of a quarantine is called: the fork, and the epoch that found it."""
    return f"{divergence:020d}-epoch-{epoch}"


def retired_name(topic_id: str | None, base: BaseOffset | None) -> str:
    """What the folder of a retired archive is called: its topic id, or else how far it reached."""
    if topic_id is not None:
        return topic_id
    return "unknown" if base is None else f"unknown-{base:020d}"


def encode_plan(plan: MovePlan) -> bytes:
    """The object's bytes."""
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
    """The plan in an object; `key` is for errors.

    Raises:
        MalformedObjectError: the bytes are no plan, or one of a version that is not known.
    """
    try:
        return _from_fields(json.loads(data))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise MalformedObjectError(
            f"{key}: no plan of a move ({type(error).__name__}: {error}); it begins {data[:60]!r}"
        ) from None


def _from_fields(fields: dict[str, Any]) -> MovePlan:
    if fields["version"] != _VERSION:
        raise ValueError(f"version {fields['version']!r} is not known here")
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
    """Read the plan in the folder with this prefix; None where there is none. One request.

    Raises:
        MalformedObjectError: it does not parse.
        StorageError: as the port says.
    """
    key = prefix + PLAN_NAME
    try:
        return decode_plan(store.get_object(key).data, key)
    except ObjectNotFoundError:
        return None


def read_pending_plan(store: RemoteStorage, prefix: str) -> MovePlan:
    """Read the plan that a watermark names as `pending`. One request.

    Raises:
        MalformedObjectError: there is none, or it does not parse.
        StorageError: as the port says.
    """
    plan = read_plan(store, prefix)
    if plan is None:
        raise MalformedObjectError(
            f"{prefix}{PLAN_NAME} does not exist, but a watermark names it as pending"
        )
    return plan


def write_plan(store: RemoteStorage, plan: MovePlan) -> MovePlan:
    """Write a plan at its target, or at `<target>.2/`, `.3/`, ... where another plan is stored.

    A stored plan for the same watermark is the same intent, from an earlier attempt: it is used. A
    kill right after the write leaves an intent, which the next attempt finds.

    Returns:
        The plan with the target under which it is stored.

    Raises:
        StorageError: as the port says.
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
    """Compare without the writer and its reason."""
    try:
        stored = read_plan(store, prefix)
    except MalformedObjectError:
        return False
    if stored is None:
        return False
    return replace(stored, reason=wanted.reason, broker_id=wanted.broker_id) == wanted
