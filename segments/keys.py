"""The keys of an archive's objects, relative to the store's root.

The layout is that of Pinterest's tiered storage: `[<bits>/]<cluster>/<topic>-<partition>/<file>`.
`<bits>` spreads partitions over an object store's key ranges: the leftmost N bits, first byte and
highest bit first, of the MD5 of `<cluster>-<topic>-<partition>`.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import (
    FileKind,
    parse_partition_directory,
    parse_segment_file_name,
    segment_file_name,
)
from sidetier.segments.offsets import (
    MAX_OFFSET,
    BaseOffset,
    BrokerId,
    Offset,
    OffsetRange,
    TopicPartition,
)

# An MD5 has no more bits.
MAX_BITS: Final = 128
OWN_ROOT: Final = "_sidetier"
"""Prefix of all objects that Pinterest's consumer must not see."""

_MAX_NAME: Final = 255
"""Longest component of a key: file systems limit a name to this number of bytes."""

_MAX_GROUP_NAME: Final = 200
"""Longest encoded name of a group."""

_MOVED_PARTS: Final = 4
"""Components up to the partition, in the key of a quarantined or retired object."""

_MAX_PREFIXES: Final = 4096
"""Prefixes of partitions that are remembered."""

_CLUSTER = re.compile(r"[A-Za-z0-9._-]+")
# The second hyphen is the sign of a broker id of -1.
_SNAPSHOT = re.compile(r"([0-9]{20})--?[0-9]+\.json")
_PACK_NUMBER = re.compile(r"[0-9]{20}")
_PACK = re.compile(rf"{OWN_ROOT}/[^/]+/tail/(0|[1-9][0-9]{{0,9}})/packs/([0-9]{{20}})")
_TAIL_DIRECTORY = re.compile(r"(0|[1-9][0-9]{0,9})/")
_GAP = re.compile(r"([0-9]{20})-([0-9]{20})\.json")


@dataclass(frozen=True, slots=True)
class ArchiveLayout:
    """How keys are made: the configured cluster name, and the number of entropy bits.

    Raises:
        ConfigurationError: The cluster name cannot be one part of a key, or there are more than 128
            bits.
    """

    cluster: str
    bits: int

    def __post_init__(self) -> None:
        # With `_sidetier` as the cluster's name, partitions and Sidetier's own
        # records would have the same prefix when there are no entropy bits.
        if not _CLUSTER.fullmatch(self.cluster) or self.cluster in {".", "..", OWN_ROOT}:
            raise ConfigurationError(
                f"cluster.name {self.cluster!r}: use letters, digits, '.', '_' and '-', "
                f"and not {OWN_ROOT!r} itself"
            )
        if self.bits > MAX_BITS:
            raise ConfigurationError(f"{self.bits} prefix entropy bits: MD5 has {MAX_BITS}")

    def partition_prefix(self, tp: TopicPartition) -> str:
        """Return the prefix of the keys of all objects of a partition. It ends with a slash."""
        return _partition_prefix(self.cluster, self.bits, tp)

    def object_key(self, tp: TopicPartition, base: BaseOffset, kind: FileKind) -> str:
        """Return the key of one file of a segment."""
        return self.partition_prefix(tp) + segment_file_name(base, kind)

    def watermark_key(self, tp: TopicPartition) -> str:
        """Return the key of `offset.wm`."""
        return self.partition_prefix(tp) + "offset.wm"

    def metadata_key(self, tp: TopicPartition) -> str:
        """Return the key of `_metadata`, the list of segments that Pinterest's consumer reads."""
        return self.partition_prefix(tp) + "_metadata"

    def epoch_checkpoint_key(self, tp: TopicPartition) -> str:
        """Return the key of the archive's epoch history."""
        return self.partition_prefix(tp) + "leader-epoch-checkpoint"

    def layout_key(self) -> str:
        """Return the key of `layout.json`, which has the number of entropy bits of this cluster's
        keys.
        """
        return f"{OWN_ROOT}/{self.cluster}/layout.json"

    def key_fingerprint_key(self, name: str) -> str:
        """Return the key of the fingerprint of the encryption key with this name."""
        return f"{OWN_ROOT}/{self.cluster}/keys/{name}.json"

    def gap_prefix(self, tp: TopicPartition) -> str:
        """Return the prefix of the keys of a partition's gap records. It ends with a slash."""
        return f"{OWN_ROOT}/{self.cluster}/gaps/{tp}/"

    def gap_key(self, tp: TopicPartition, start: Offset, end: Offset) -> str:
        """Return the key of the record of a gap from `start` up to `end`, exclusive."""
        return f"{self.gap_prefix(tp)}{start:020d}-{end:020d}.json"

    def chapters_prefix(self, tp: TopicPartition, topic_id: str | None) -> str:
        """Return the prefix of the keys of a partition's chapters. It ends with a slash.

        A recreated topic has another prefix.
        """
        return f"{OWN_ROOT}/{self.cluster}/chapters/{tp}/{topic_id or 'unknown'}/"

    def chapter_key(
        self, tp: TopicPartition, topic_id: str | None, start: Offset, end: Offset
    ) -> str:
        """Return the key of a chapter of the offsets from `start` up to `end`, exclusive."""
        return f"{self.chapters_prefix(tp, topic_id)}{start:020d}-{end:020d}.json"

    def gaps_prefix(self) -> str:
        """Return the prefix of the keys of all gap records of the cluster. It ends with a slash."""
        return f"{OWN_ROOT}/{self.cluster}/gaps/"

    def quarantines_prefix(self) -> str:
        """Return the prefix of the keys of all quarantined objects of the cluster. It ends with a
        slash.
        """
        return f"{OWN_ROOT}/{self.cluster}/quarantine/"

    def acknowledged_prefix(self) -> str:
        """Return the prefix of the keys of all acknowledgements. It ends with a slash."""
        return f"{OWN_ROOT}/{self.cluster}/acknowledged/"

    def acknowledgement_key(self, key: str) -> str:
        """Return the key of an operator's acknowledgement that the problem recorded at `key` is
        resolved.
        """
        return self.acknowledged_prefix() + key.removeprefix(f"{OWN_ROOT}/{self.cluster}/")

    def starts_prefix(self) -> str:
        """Return the prefix of the keys of all start records of the cluster. It ends with a
        slash.
        """
        return f"{OWN_ROOT}/{self.cluster}/starts/"

    def start_key(self, tp: TopicPartition) -> str:
        """Return the key of the record of where an archive without `offset.wm` begins."""
        return _key_of_partition(self.starts_prefix(), tp, "start")

    def start_keys(self, tp: TopicPartition) -> tuple[str, ...]:
        """Return `start_key`, and if it differs, the key at which earlier versions stored it."""
        return _with_former(self.start_key(tp), self.starts_prefix(), tp)

    def clock_key(self, tp: TopicPartition) -> str:
        """Return the key of an object that is written to read the store's clock, and deleted at
        once.
        """
        return _key_of_partition(f"{OWN_ROOT}/{self.cluster}/clock/", tp, "clock")

    def quarantine_prefix(self, tp: TopicPartition) -> str:
        """Return the prefix of the keys of a partition's quarantined objects. It ends with a
        slash.
        """
        return f"{OWN_ROOT}/{self.cluster}/quarantine/{tp}/"

    def retired_prefix(self, tp: TopicPartition) -> str:
        """Return the prefix of the keys of a partition's retired archives. It ends with a slash."""
        return f"{OWN_ROOT}/{self.cluster}/retired/{tp}/"

    def cluster_index_key(self) -> str:
        """Return the key of the object that names the newest cluster snapshot of each kind."""
        return f"{OWN_ROOT}/{self.cluster}/cluster/latest.json"

    def cluster_snapshots_prefix(self, kind: str) -> str:
        """Return the prefix of the keys of all cluster snapshots of one kind. It ends with a
        slash.
        """
        return f"{OWN_ROOT}/{self.cluster}/cluster/{kind}/"

    def cluster_snapshot_key(self, kind: str, taken_ms: int, broker_id: int) -> str:
        """Return the key of the snapshot that the sidecar of this broker took at this time.

        Keys sort by time, and two sidecars never write the same one.
        """
        return f"{self.cluster_snapshots_prefix(kind)}{taken_ms:020d}-{broker_id}.json"

    def drill_key(self) -> str:
        """Return the key of the record of the last restore drill."""
        return f"{OWN_ROOT}/{self.cluster}/drill.json"

    def tails_prefix(self) -> str:
        """Return the prefix of the keys of all tail packs of the cluster. It ends with a slash."""
        return f"{OWN_ROOT}/{self.cluster}/tail/"

    def tail_prefix(self, broker_id: int) -> str:
        """Return the prefix of the keys of one broker's tail. It ends with a slash."""
        return f"{self.tails_prefix()}{broker_id}/"

    def tail_packs_prefix(self, broker_id: int) -> str:
        """Return the prefix of the keys of one broker's tail packs. It ends with a slash."""
        return f"{self.tail_prefix(broker_id)}packs/"

    def tail_pack_key(self, broker_id: int, number: int) -> str:
        """Return the key of a tail pack. Keys sort by number."""
        return f"{self.tail_packs_prefix(broker_id)}{number:020d}"

    def tail_index_key(self, broker_id: int) -> str:
        """Return the key of the object that names the live tail packs of one broker."""
        return f"{self.tail_prefix(broker_id)}index"

    def mirror_maps_prefix(self, mirror: str) -> str:
        """Return the prefix of the keys of a mirror's stored offset maps. It ends with a slash."""
        return f"{OWN_ROOT}/{self.cluster}/mirrors/{mirror}/offsets/"

    def mirror_map_key(self, mirror: str, target: TopicPartition) -> str:
        """Return the key of a mirror's stored offset map of one target partition."""
        return _key_of_partition(self.mirror_maps_prefix(mirror), target, "map")

    def mirror_map_keys(self, mirror: str, target: TopicPartition) -> tuple[str, ...]:
        """Return `mirror_map_key`, and if it differs, the key at which earlier versions stored the
        map.
        """
        return _with_former(
            self.mirror_map_key(mirror, target), self.mirror_maps_prefix(mirror), target
        )

    def groups_prefix(self) -> str:
        """Return the prefix of the keys of the consumer groups that `sidetier serve` keeps. It ends
        with a slash.
        """
        return f"{OWN_ROOT}/{self.cluster}/groups/"

    def groups_clock_key(self) -> str:
        """Return the key of an object that `sidetier serve` writes to read the store's clock. It is
        below `groups_prefix`, where the endpoint may write.
        """
        return f"{self.groups_prefix()}clock"

    def group_key(self, group: str) -> str | None:
        """Return the key of the offsets of a consumer group; None if its name is too long.

        All characters but letters, digits, '.', '_' and '-' are percent-encoded as UTF-8: the name
        of a group can be any text.
        """
        name = quote(group, safe="").replace("~", "%7E")
        return f"{self.groups_prefix()}{name}.json" if len(name) <= _MAX_GROUP_NAME else None


def _key_of_partition(prefix: str, tp: TopicPartition, name: str) -> str:
    """Return the key of the one object that a partition has below a prefix.

    It is a file named after the partition. For the longest topic names, it is a file in a folder of
    this name: a file system would not take the name with `.json`.
    """
    file = _file_of_partition(tp)
    return f"{prefix}{file}" if len(file) <= _MAX_NAME else f"{prefix}{tp}/{name}.json"


def _file_of_partition(tp: TopicPartition) -> str:
    return f"{tp}.json"


def _with_former(key: str, prefix: str, tp: TopicPartition) -> tuple[str, ...]:
    former = f"{prefix}{_file_of_partition(tp)}"
    return (key,) if key == former else (key, former)


# A check or a commit of a partition makes several keys of it.
@lru_cache(_MAX_PREFIXES)
def _partition_prefix(cluster: str, bits: int, tp: TopicPartition) -> str:
    prefix = f"{cluster}/{tp}/"
    if bits <= 0:
        return prefix
    # MD5 is not for security here: Pinterest's readers compute the same prefix.
    digest = hashlib.md5(f"{cluster}-{tp}".encode(), usedforsecurity=False).digest()
    entropy = f"{int.from_bytes(digest):0{MAX_BITS}b}"[:bits]
    return f"{entropy}/{prefix}"


def parse_object_key(key: str, partition_prefix: str) -> tuple[BaseOffset, FileKind] | None:
    """Return the segment file that a key below a partition's prefix names; None for other
    objects.
    """
    if not key.startswith(partition_prefix):
        return None
    parsed = parse_segment_file_name(key.removeprefix(partition_prefix))
    # The sidecar stores files under their live names,
    # so a `.deleted` key is not a segment of an archive.
    if parsed is None or parsed.deleted:
        return None
    return parsed.base_offset, parsed.kind


def topic_of_key(key: str) -> str | None:
    """Return the topic of a segment's file, by its key in an archive or in a folder of moved
    segments; None for another key.
    """
    directory = parse_partition_directory(_partition_folder(key))
    return None if directory is None else directory.topic_partition.topic


def place_of_log(key: str) -> str | None:
    """Return partition and base offset of a `.log`, such as `orders-0/00000000000000000100`; None
    for another key.

    A segment keeps its place where it is moved to another folder of the archive, and where the
    archive is moved to another store, prefix or cluster name.
    """
    folder, name = _partition_folder(key), parse_segment_file_name(key.rpartition("/")[2])
    if name is None or name.kind is not FileKind.LOG or name.deleted:
        return None
    return (
        None if parse_partition_directory(folder) is None else f"{folder}/{name.base_offset:020d}"
    )


def place_of_pack(key: str) -> str | None:
    """Return broker and number of a tail pack, such as `tail/3/00000000000000000100`; None for
    another key.

    A pack keeps its place where the archive is moved to another store, prefix or cluster name. It
    differs from the places of all segments by its two slashes.
    """
    match = _PACK.fullmatch(key)
    return None if match is None else f"tail/{match[1]}/{match[2]}"


def _partition_folder(key: str) -> str:
    """Return the folder in the key that is named after a partition; '' for a key without folder."""
    parts = key.split("/")
    # `_sidetier/<cluster>/quarantine/<topic>-<partition>/...`: the folders below have other names.
    folders = parts[:_MOVED_PARTS] if parts[0] == OWN_ROOT else parts[:-1]
    return folders[-1] if folders else ""


def parse_gap_key(key: str, gap_prefix: str) -> OffsetRange | None:
    """Return the gap that a key below a partition's gap prefix names; None for another key."""
    match = _GAP.fullmatch(key.removeprefix(gap_prefix)) if key.startswith(gap_prefix) else None
    if match is None:
        return None
    start, end = int(match[1]), int(match[2])
    return OffsetRange(Offset(start), Offset(end)) if end <= MAX_OFFSET else None


def parse_group_key(key: str, prefix: str) -> str | None:
    """Return the group that a key below `groups_prefix` names; None for another key."""
    name = key.removeprefix(prefix)
    if not key.startswith(prefix) or "/" in name or not name.endswith(".json"):
        return None
    return unquote(name.removesuffix(".json"))


def parse_chapter_key(key: str, prefix: str) -> OffsetRange | None:
    """Return the offsets of the chapter that a key below `chapters_prefix` names; None for another
    key.
    """
    return parse_gap_key(key, prefix)


def parse_tail_pack_key(key: str, prefix: str) -> int | None:
    """Return the number of the tail pack with this key; None for another key.

    Args:
        key: A key.
        prefix: `tail_packs_prefix` of the broker.
    """
    number = key.removeprefix(prefix)
    if not key.startswith(prefix) or _PACK_NUMBER.fullmatch(number) is None:
        return None
    return int(number) if int(number) <= MAX_OFFSET else None


def parse_tail_directory(directory: str, prefix: str) -> BrokerId | None:
    """Return the broker of a directory below `tails_prefix`; None for another directory."""
    match = _TAIL_DIRECTORY.fullmatch(directory.removeprefix(prefix))
    return BrokerId(int(match[1])) if match is not None and directory.startswith(prefix) else None


def parse_cluster_snapshot_key(key: str, prefix: str) -> int | None:
    """Return when the cluster snapshot with this key was taken, in ms since 1970; None for another
    key.
    """
    match = _SNAPSHOT.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    return None if match is None else int(match[1])
