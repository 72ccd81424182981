"""Making a plan, and writing it down where no other has been."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from sidetier.archive.objects.quarantine import PLAN_NAME, MovePlan, decode_plan, encode_plan
from sidetier.segments.errors import MalformedObjectError, PreconditionFailedError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, RemoteStorage


def write_down(store: RemoteStorage, plan: MovePlan) -> MovePlan:
    """Write the plan at its target, or at `<target>.2/`, `.3/` … where another stands there.

    A plan for the same watermark is the same intent, begun by an earlier try: it is taken over.
    Returns the plan as it stands there.
    """
    for target in _targets(plan.target):
        wanted = replace(plan, target=target)
        key = target + PLAN_NAME
        try:
            store.put_object(key, BytesBody(encode_plan(wanted)), condition=IfAbsent())
        except PreconditionFailedError:
            if not _is_same_intent(store, key, wanted):
                continue
        return wanted
    raise AssertionError("the numbers do not end")


def _targets(first: str) -> Iterator[str]:
    yield first
    yield from (f"{first.removesuffix('/')}.{number}/" for number in count(2))


def _is_same_intent(store: RemoteStorage, key: str, wanted: MovePlan) -> bool:
    """Whoever wrote it, and however it told why."""
    try:
        there = decode_plan(store.get_object(key).data, key)
    except MalformedObjectError:
        return False
    return replace(there, reason=wanted.reason, broker_id=wanted.broker_id) == wanted


def probe_removal(store: RemoteStorage, plan: MovePlan) -> None:
    """Raise AccessDeniedError now where objects cannot be removed, not halfway through.

    That there is nothing to remove is no error.
    """
    store.delete_object(plan.target + "probe")
