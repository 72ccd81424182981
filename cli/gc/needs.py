"""What the consumers in `retention.store[].keep_for` have not read yet.

Committed offsets are those of the brokers at the time of the request. If an open transaction
commits later ones, they do not count yet.

Each need has the topic id of its offset, which must be the one of the archive. `PartitionCollector`
compares them once more: the topic may be recreated meanwhile. Brokers store no topic id with a
committed offset, so they are asked for the topic's id and for the cluster's before and after they
are asked for the offsets.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from sidetier.archive.access import ArchiveAccess, endpoint_provider, require_directory
from sidetier.archive.gc.retention import Need, other_topic
from sidetier.archive.objects.layout import other_cluster, read_note
from sidetier.archive.objects.watermark import read_watermark
from sidetier.cli.extras import from_extra
from sidetier.cli.stores import layout_of
from sidetier.config.properties_file import read_properties
from sidetier.endpoint.groups.stored_offsets import parse_group
from sidetier.leadership.cluster import as_texts
from sidetier.leadership.kraft.image import print_uuid
from sidetier.leadership.topic_identity import TopicIdentity, ask_identity
from sidetier.mirror.topics.rules import MirrorNames, decode_lineage
from sidetier.segments.errors import (
    BrokerError,
    ConfigurationError,
    ObjectNotFoundError,
    SidetierError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.factory import open_storage
from sidetier.storage.port import RemoteStorage
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset, committed_offsets
from sidetier.wire.settings import ClientSettings

if TYPE_CHECKING:
    from sidetier.config.model import Config
    from sidetier.config.retention import (
        RetainedExport,
        RetainedMirror,
        RetainedTable,
        StoreRetention,
    )
    from sidetier.pipeline.export.state import Exported

_TIMEOUT_SECONDS: Final = 15.0
_BOOTSTRAP: Final = "bootstrap.servers"
_FORMATS: Final = {"hudi": "Hudi", "iceberg": "Iceberg"}

NeedsByPartition = Mapping[TopicPartition, list[Need]]


class _NextOffset(NamedTuple):
    """The first offset that a consumer has not read, and the id of the topic that it has read.

    Attributes:
        offset: The offset.
        topic_id: Id of the topic, as Kafka writes ids; None if the consumer does not know it.
    """

    offset: Offset
    topic_id: str | None


class UnknownProgressError(SidetierError):
    """The progress of a consumer is not known, so nothing of the topic may be deleted."""


def check_rule(config: "Config", rule: "StoreRetention") -> None:
    """Check that this installation can read the progress of a rule's consumers. No request.

    Raises:
        ConfigurationError: A setting or a package is missing.
    """
    if rule.keep_for.groups:
        _brokers(config)
    if rule.keep_for.exports:
        _manifests()
    if rule.keep_for.tables:
        _stored_progress()


def read_needs(
    config: "Config",
    stores: ArchiveAccess,
    rule: "StoreRetention",
    partitions: Collection[TopicPartition],
) -> NeedsByPartition:
    """Return what the consumers of a rule still need of the partitions of one topic.

    Args:
        config: The configuration.
        stores: The stores of the archive.
        rule: The rule of the topic.
        partitions: All archived partitions of the topic.

    Raises:
        UnknownProgressError: The progress of a consumer is unknown for one of the partitions.
    """
    needs: dict[TopicPartition, list[Need]] = defaultdict(list)
    keep_for = rule.keep_for
    if not any(consumers for _, consumers in keep_for):
        return needs
    # Read before the offsets: of an archive that has begun anew since, nothing is deleted.
    archived_ids = _archived_ids(layout_of(config), stores, partitions)
    for group in keep_for.groups:
        consumer = f"consumer group {group}"
        answer = _of_group(_brokers(config), group, partitions, consumer)
        topic_id = _archived_topic_id(config, stores, answer, consumer)
        next_offsets = {
            tp: _NextOffset(committed.offset, topic_id)
            for tp, committed in answer.committed.items()
        }
        _add(needs, partitions, next_offsets, consumer)
    for mirror in keep_for.mirrors:
        consumer = f"mirror {mirror.name}"
        _add(needs, partitions, _of_mirror(mirror, partitions, consumer), consumer)
    for export in keep_for.exports:
        consumer = f"export to {export.into}"
        _add(needs, partitions, _of_export(config, export, partitions, consumer), consumer)
    for table in keep_for.tables:
        consumer = f"export to the {_FORMATS[table.format]} table {table.location}"
        _add(needs, partitions, _of_table(config, table, consumer), consumer)
    for group in keep_for.local_groups:
        consumer = f"local group {group}"
        next_offsets = _of_local_group(layout_of(config), stores, group, consumer)
        _add(needs, partitions, next_offsets, consumer)
    _require_same_topics(needs, archived_ids)
    return needs


def _add(
    needs: dict[TopicPartition, list[Need]],
    partitions: Collection[TopicPartition],
    next_offsets: Mapping[TopicPartition, _NextOffset],
    consumer: str,
) -> None:
    for tp in partitions:
        if tp not in next_offsets:
            raise UnknownProgressError(f"{consumer}: its progress in {tp} is unknown")
        offset, topic_id = next_offsets[tp]
        needs[tp].append(Need(offset, consumer, topic_id))


def _archived_ids(
    layout: ArchiveLayout, stores: ArchiveAccess, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, str | None]:
    """Return the topic id in `offset.wm` of each partition; None if it has none."""
    ids: dict[TopicPartition, str | None] = {}
    for tp in partitions:
        try:
            mark = read_watermark(stores.store(tp.topic), layout.watermark_key(tp))
        except SidetierError as error:
            raise UnknownProgressError(
                f"{tp}: its topic id in the archive is unknown: {error}"
            ) from error
        ids[tp] = None if mark is None else mark.watermark.topic_id
    return ids


def _require_same_topics(
    needs: NeedsByPartition, archived_ids: Mapping[TopicPartition, str | None]
) -> None:
    """Check all partitions: a topic is recreated as a whole.

    Raises:
        UnknownProgressError: The ids of an offset and of its archive differ, or one is missing.
    """
    for tp, consumers in needs.items():
        for need in consumers:
            reason = other_topic(need, archived_ids[tp])
            if reason is not None:
                raise UnknownProgressError(f"{tp}: {reason}")


def _brokers(config: "Config") -> dict[str, str]:
    if config.broker.bootstrap_servers is None:
        raise ConfigurationError(
            "retention.store: keep_for.groups needs broker.bootstrap_servers, which is not set"
        )
    return as_texts(config.broker.client_properties())


class _GroupAnswer(NamedTuple):
    """The committed offsets of a group in a topic, and what the brokers say about the topic."""

    topic: str
    committed: Mapping[TopicPartition, CommittedOffset]
    identity: TopicIdentity


def _of_group(
    properties: Mapping[str, str],
    group: str,
    partitions: Collection[TopicPartition],
    consumer: str,
) -> _GroupAnswer:
    """Return the committed offsets of a consumer group in the partitions of one topic. A missing
    group has none.
    """
    [topic] = {tp.topic for tp in partitions}
    servers = properties[_BOOTSTRAP]
    # Not librdkafka's client: it crashes the process if the coordinator has just started.
    try:
        with Cluster(ClientSettings.from_properties(properties)) as cluster:
            before = ask_identity(cluster, topic)
            committed = committed_offsets(
                cluster, group, partitions, require_stable=False, timeout=_TIMEOUT_SECONDS
            )
            after = ask_identity(cluster, topic)
    except (BrokerError, ConfigurationError) as error:
        raise UnknownProgressError(
            f"{consumer}: {servers} does not tell its committed offsets: {error}"
        ) from error
    if before != after:
        raise UnknownProgressError(
            f"{consumer}: the cluster id of {servers}, or the id or number of partitions of topic "
            f"{topic}, changed while its committed offsets were read; repeat the command"
        )
    return _GroupAnswer(topic, committed, after)


def _archived_topic_id(
    config: "Config", stores: ArchiveAccess, answer: _GroupAnswer, consumer: str
) -> str:
    """Return the topic id of committed offsets, after a check that the brokers are the archive's.

    Raises:
        UnknownProgressError: The brokers belong to another cluster, or that or the id is not known.
    """
    topic, identity, layout = answer.topic, answer.identity, layout_of(config)
    servers = config.broker.bootstrap_servers
    try:
        note = read_note(stores.store(topic), layout)
    except SidetierError as error:
        raise UnknownProgressError(f"{consumer}: {error}") from error
    reason = other_cluster(note, layout, identity.cluster_id)
    if reason is not None:
        raise UnknownProgressError(f"{consumer}: {reason}")
    if not identity.partitions:
        raise UnknownProgressError(f"{consumer}: {servers} has no topic {topic}")
    if identity.topic_id is None:
        raise UnknownProgressError(
            f"{consumer}: {servers} reports no id of topic {topic}, so the committed offsets may "
            "be of another topic than the archive. Kafka has topic ids from 2.8 on "
            "(inter.broker.protocol.version): upgrade the brokers, or remove the group from "
            "keep_for"
        )
    return identity.topic_id


def _of_mirror(
    mirror: "RetainedMirror", partitions: Collection[TopicPartition], consumer: str
) -> dict[TopicPartition, _NextOffset]:
    """Return the progress of a mirror: source offsets that its group on the target commits, with
    the id of the source topic in their metadata.
    """
    try:
        properties = read_properties(mirror.target_config, f"{consumer}: target_config")
    except ConfigurationError as error:
        raise UnknownProgressError(str(error)) from error
    if _BOOTSTRAP not in properties:
        raise UnknownProgressError(f"{consumer}: {mirror.target_config} has no {_BOOTSTRAP}")
    copies = {
        TopicPartition(mirror.topics.get(tp.topic, tp.topic), tp.partition): tp for tp in partitions
    }
    group = MirrorNames(mirror.name).group
    answer = _of_group(properties, group, copies, consumer)
    next_offsets = {}
    for tp, committed in answer.committed.items():
        if tp not in copies:
            continue
        lineage = decode_lineage(committed.metadata)
        target_id = _kafka_id(lineage.target_id if lineage else None, "target_id", tp, consumer)
        if target_id is not None and target_id != answer.identity.topic_id:
            raise UnknownProgressError(
                f"{consumer}: its progress in {tp} is of topic id {target_id} on the target, and "
                f"the target has {answer.identity.topic_id}: the copy was deleted or created again"
            )
        source_id = _kafka_id(lineage.source_id if lineage else None, "source_id", tp, consumer)
        next_offsets[copies[tp]] = _NextOffset(committed.offset, source_id)
    return next_offsets


def _kafka_id(text: str | None, name: str, tp: TopicPartition, consumer: str) -> str | None:
    """Convert a topic id of a mirror's progress to Kafka's form."""
    if text is None:
        return None
    try:
        # The mirror writes the id as RFC 9562 does, the archive as Kafka does.
        return print_uuid(UUID(text).bytes)
    except (AttributeError, TypeError, ValueError):
        raise UnknownProgressError(
            f"{consumer}: the {name} beside its offset in {tp} is {text!r}, which is not a topic id"
        ) from None


def _manifests() -> Any:  # noqa: ANN401 - a module
    def load():  # type: ignore[no-untyped-def]  # noqa: ANN202 - a module
        from sidetier.pipeline.export.sinks.files import manifest  # noqa: PLC0415 -- needs the extra

        return manifest

    packages = ("babel", "cramjam", "fastavro", "google", "numpy", "pyarrow")
    return from_extra(load, "keep_for.exports", packages, "export")


@contextmanager
def _output(config: "Config", url: str, consumer: str) -> Iterator[RemoteStorage]:
    """Open the output of an export. Every error in the block tells that its progress is unknown."""
    target = config.storage.model_copy(update={"url": url, "overrides": ()})
    try:
        require_directory(url)
        store = open_storage(endpoint_provider(target).endpoints[0])
        try:
            yield store
        finally:
            store.close()
    except UnknownProgressError:
        raise
    except SidetierError as error:
        raise UnknownProgressError(f"{consumer}: {error}") from error


def _of_export(
    config: "Config",
    export: "RetainedExport",
    partitions: Collection[TopicPartition],
    consumer: str,
) -> dict[TopicPartition, _NextOffset]:
    """Return the next offsets in the manifest of an export to files."""
    manifests = _manifests()
    [topic] = {tp.topic for tp in partitions}
    key = manifests.manifest_key(export.topics_dir, topic)
    with _output(config, export.into, consumer) as store:
        try:
            stored = store.get_object(key)
        except ObjectNotFoundError as error:
            raise UnknownProgressError(
                f"{consumer}: it has no manifest {key}, so it has not exported topic {topic} yet"
            ) from error
        manifest = manifests.decode_manifest(stored.data, f"{export.into}/{key}")
    if manifest.cluster != config.cluster.name:
        raise UnknownProgressError(f"{consumer}: it exports cluster {manifest.cluster}")
    if manifest.asked is not None:
        raise UnknownProgressError(
            f"{consumer}: it exports the given range {manifest.asked}, so its next offsets do not "
            "tell what it still reads"
        )
    return {
        TopicPartition(topic, partition): _NextOffset(Offset(offset), manifest.topic_id)
        for partition, offset in manifest.next_offsets.items()
    }


def _stored_progress() -> Any:  # noqa: ANN401 - a module
    def load():  # type: ignore[no-untyped-def]  # noqa: ANN202 - a module
        from sidetier.pipeline.export.sinks.tables import stored_progress  # noqa: PLC0415 -- needs the extra

        return stored_progress

    return from_extra(load, "keep_for.tables", ("fastavro",), "export")


def _of_table(
    config: "Config", table: "RetainedTable", consumer: str
) -> dict[TopicPartition, _NextOffset]:
    """Return the next offsets in the commits of a table."""
    module = _stored_progress()
    read = module.hudi_progress if table.format == "hudi" else module.iceberg_progress
    with _output(config, table.location, consumer) as store:
        exported: Exported = read(store, config.cluster.name)
    topic_ids = exported.tail.topic_ids
    return {
        tp: _NextOffset(offset, topic_ids.get(tp.topic))
        for tp, offset in exported.next_offsets.items()
    }


def _of_local_group(
    layout: ArchiveLayout,
    stores: ArchiveAccess,
    group: str,
    consumer: str,
) -> dict[TopicPartition, _NextOffset]:
    """Return the committed offsets of a group of `sidetier serve --groups local`."""
    key = layout.group_key(group)
    if key is None:
        raise UnknownProgressError(f"{consumer}: its name is too long for a group")
    try:
        stored = stores.by_endpoint[stores.provider.default].get_object(key)
        committed = parse_group(stored.data, key).offsets
    except ObjectNotFoundError as error:
        raise UnknownProgressError(
            f"{consumer}: {key} does not exist, so it has committed no offset yet"
        ) from error
    except SidetierError as error:
        raise UnknownProgressError(f"{consumer}: {error}") from error
    return {tp: _NextOffset(offset.offset, offset.topic_id) for tp, offset in committed.items()}
