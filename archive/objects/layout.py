"""`layout.json`: how this cluster's keys are made. The writer and the readers must agree on it."""

import json
from dataclasses import dataclass

from sidetier.segments.errors import (
    ConfigurationError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import RemoteStorage, unchanged


@dataclass(frozen=True, slots=True)
class LayoutNote:
    """The contents of `layout.json`.

    Attributes:
        bits: Number of prefix entropy bits.
        kafka_cluster_id: Kafka's own id of the cluster; None if it is not known.
    """

    bits: int
    kafka_cluster_id: str | None


def read_note(store: RemoteStorage, layout: ArchiveLayout) -> LayoutNote | None:
    """Read `layout.json`; None if there is none.

    Raises:
        MalformedObjectError: It does not parse.
    """
    key = layout.layout_key()
    try:
        data = store.get_object(key).data
    except ObjectNotFoundError:
        return None
    try:
        note = json.loads(data)
        kafka_id = note.get("kafka_cluster_id")
        return LayoutNote(int(note["bits"]), None if kafka_id is None else str(kafka_id))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MalformedObjectError(f"{key} is no layout note: {data[:80]!r}") from None


def agree(
    store: RemoteStorage,
    layout: ArchiveLayout,
    kafka_cluster_id: str | None,
    *,
    seen_none: bool = False,
) -> None:
    """Write `layout.json` at the first start; refuse to start if a stored one differs.

    Args:
        store: The store.
        layout: The configured layout.
        kafka_cluster_id: Kafka's own id of the cluster; None if it is not known.
        seen_none: A caller has just read that there is none. On a store with conditional writes,
            the note is then written without another read.

    Raises:
        ConfigurationError: The archive has other entropy bits, or belongs to another cluster.
    """
    leave_at_once = seen_none and store.capabilities.conditional_writes
    # The conditional put finds out about a note that was written since.
    note = None if leave_at_once else read_note(store, layout)
    if note is None:
        note = _leave(store, layout, kafka_cluster_id)
    check_note(note, layout, kafka_cluster_id)


def look(
    store: RemoteStorage, layout: ArchiveLayout, kafka_cluster_id: str | None
) -> LayoutNote | None:
    """As `agree`, but never write: for a start that may still be refused. Return the stored note.

    Raises:
        ConfigurationError: The archive has other entropy bits, or belongs to another cluster.
    """
    note = read_note(store, layout)
    if note is not None:
        check_note(note, layout, kafka_cluster_id)
    return note


def check_note(there: LayoutNote, layout: ArchiveLayout, kafka_cluster_id: str | None) -> None:
    """Check that a note matches the configured layout. Readers only check, and never write.

    Raises:
        ConfigurationError: The archive has other entropy bits, or belongs to another cluster.
    """
    # Zero and negative numbers mean the same: no entropy component.
    if max(there.bits, 0) != max(layout.bits, 0):
        raise ConfigurationError(
            f"storage.prefix_entropy_bits is {layout.bits}, but the archive of cluster "
            f"{layout.cluster!r} was begun with {there.bits} ({layout.layout_key()}): what is "
            f"stored would not be found any more; set it to {there.bits}"
        )
    theirs = there.kafka_cluster_id
    if theirs is not None and kafka_cluster_id is not None and theirs != kafka_cluster_id:
        raise ConfigurationError(
            f"cluster.name {layout.cluster!r} is the archive of Kafka cluster {theirs}, this "
            f"broker belongs to {kafka_cluster_id} ({layout.layout_key()}): choose another "
            "cluster.name or another storage.url"
        )


def _leave(store: RemoteStorage, layout: ArchiveLayout, kafka_id: str | None) -> LayoutNote:
    note = {
        "version": 1,
        "cluster": layout.cluster,
        "bits": layout.bits,
        "kafka_cluster_id": kafka_id,
    }
    body = BytesBody(json.dumps(note, sort_keys=True).encode())
    try:
        store.put_object(layout.layout_key(), body, condition=unchanged(None))
    except PreconditionFailedError:  # another broker's sidecar wrote it first
        return read_note(store, layout) or LayoutNote(layout.bits, kafka_id)
    return LayoutNote(layout.bits, kafka_id)
