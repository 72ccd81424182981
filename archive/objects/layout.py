"""`layout.json`: the layout of a cluster's keys, which the writer and all readers must share."""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import (
    ConfigurationError,
    MalformedObjectError,
    PreconditionFailedError,
)
from sidetier.segments.keys import OWN_ROOT, ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged

_MAX_ARCHIVES: Final = 100
"""Maximum number of other archives in one store whose notes are read at a start."""


@dataclass(frozen=True, slots=True)
class LayoutNote:
    """The contents of `layout.json`.

    Attributes:
        bits: Number of prefix entropy bits.
        kafka_cluster_id: Kafka's own id of the cluster; None if it is not known.
    """

    bits: int
    kafka_cluster_id: str | None = None


_CODEC: Final = JsonCodec(LayoutNote, "a layout note")


def read_note(store: RemoteStorage, layout: ArchiveLayout) -> LayoutNote | None:
    """Read `layout.json`; None if the store has none.

    An unknown version refuses the start of a sidecar, before it holds any segment. With another
    layout, it would store segments where no reader looks.

    Raises:
        MalformedObjectError: It does not parse, or has an unknown version.
    """
    stored = _CODEC.read(store, layout.layout_key())
    return None if stored is None else stored.value


def write_or_check_note(
    store: RemoteStorage,
    layout: ArchiveLayout,
    kafka_cluster_id: str | None,
    *,
    known_missing: bool = False,
) -> None:
    """Write `layout.json` if the store has none; otherwise check that it matches the settings.

    Args:
        store: The store.
        layout: The configured layout.
        kafka_cluster_id: Kafka's own id of the cluster; None if it is not known.
        known_missing: The caller has just read that `layout.json` does not exist. On a store with
            conditional writes, it is then written without another read.

    Raises:
        ConfigurationError: The archive has other entropy bits, or belongs to another cluster.
    """
    writes_at_once = known_missing and store.capabilities.conditional_writes
    # If the note was written in the meantime, the conditional put fails and the note is read.
    note = None if writes_at_once else read_note(store, layout)
    if note is None:
        note = _write_note(store, layout, kafka_cluster_id)
    check_note(note, layout, kafka_cluster_id)


def check_stored_note(
    store: RemoteStorage, layout: ArchiveLayout, kafka_cluster_id: str | None
) -> LayoutNote | None:
    """Check `layout.json` and never write it, because a later check may still fail the start.

    Returns:
        The stored note; None if the store has none.

    Raises:
        ConfigurationError: The archive has other entropy bits, or belongs to another cluster.
    """
    note = read_note(store, layout)
    if note is not None:
        check_note(note, layout, kafka_cluster_id)
    return note


def check_note(note: LayoutNote, layout: ArchiveLayout, kafka_cluster_id: str | None) -> None:
    """Check that a stored note matches the configured layout. Readers only check, and never write.

    Raises:
        ConfigurationError: The archive has other entropy bits, or belongs to another cluster.
    """
    # Zero and negative numbers mean the same: no entropy component.
    if max(note.bits, 0) != max(layout.bits, 0):
        raise ConfigurationError(
            f"storage.prefix_entropy_bits is {layout.bits}, but the archive of cluster "
            f"{layout.cluster!r} has keys with {note.bits} ({layout.layout_key()}): readers would "
            f"not find the stored objects; set it to {note.bits}"
        )
    noted_id = note.kafka_cluster_id
    if noted_id is not None and kafka_cluster_id is not None and noted_id != kafka_cluster_id:
        raise ConfigurationError(
            f"cluster.name {layout.cluster!r} is the archive of Kafka cluster {noted_id}, but the "
            f"broker belongs to {kafka_cluster_id} ({layout.layout_key()}): choose another "
            "cluster.name or another storage.url, or check broker.bootstrap_servers"
        )


def other_archives(
    store: RemoteStorage, layout: ArchiveLayout, kafka_cluster_id: str
) -> tuple[str, ...]:
    """Return the `cluster.name`s of other archives of this Kafka cluster in the same store.

    Two archives of one cluster are usually a mistake in one sidecar's `cluster.name`: each of them
    lacks the partitions that the other's sidecars lead. One list request, and one GET for each
    other name, up to a limit.
    """
    root = f"{OWN_ROOT}/"
    names = [path.removeprefix(root).rstrip("/") for path in store.list_directories(root)]
    others = []
    for name in [name for name in names if name != layout.cluster][:_MAX_ARCHIVES]:
        # A damaged note is a problem of that archive, and a foreign directory is none.
        with suppress(MalformedObjectError, ConfigurationError):
            note = read_note(store, replace(layout, cluster=name))
            if note is not None and note.kafka_cluster_id == kafka_cluster_id:
                others.append(name)
    return tuple(others)


def second_archive(cluster: str, other: str, url: str) -> str:
    """Return the warning about another archive of the same Kafka cluster."""
    return (
        f"{url} has another archive of this Kafka cluster, {other!r}, beside {cluster!r}: if one "
        "of them is due to a wrong cluster.name, correct it; each archive has only what its own "
        "sidecars store"
    )


def other_cluster(
    note: LayoutNote | None, layout: ArchiveLayout, cluster_id: str | None
) -> str | None:
    """Tell why brokers are not known to belong to the archived cluster; None if they do.

    Args:
        note: The content of `layout.json`; None if it is not stored.
        layout: The layout of the archive.
        cluster_id: Kafka's id of the cluster, as the brokers report it.
    """
    archived = None if note is None else note.kafka_cluster_id
    key = layout.layout_key()
    if archived is None:
        return (
            f"{key} has no Kafka cluster id, so it is unknown whether these brokers belong to the "
            "archived cluster; a sidecar or `sidetier backfill` beside a broker writes the id"
        )
    if cluster_id is None:
        return (
            "the brokers report no cluster id, and the archive belongs to the Kafka cluster "
            f"{archived} ({key})"
        )
    if cluster_id != archived:
        return (
            f"the brokers belong to the Kafka cluster {cluster_id}, and the archive to {archived} "
            f"({key}): check broker.bootstrap_servers, cluster.name and storage.url"
        )
    return None


def _write_note(store: RemoteStorage, layout: ArchiveLayout, kafka_id: str | None) -> LayoutNote:
    note = LayoutNote(layout.bits, kafka_id)
    body = BytesBody(_CODEC.encode({"cluster": layout.cluster, **asdict(note)}))
    try:
        store.put_object(layout.layout_key(), body, PutOptions(condition=unchanged(None)))
    except PreconditionFailedError:  # another broker's sidecar wrote it first
        return read_note(store, layout) or note
    return note
