"""The class of an object, by its key: with a tag, one lifecycle rule of a bucket covers a class.

Objects of the class `metadata` must never expire: without `offset.wm`, nothing is known to be
archived.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from sidetier.segments.notes import CLASS_TAG
from sidetier.storage.encrypted_format import parse_marker

_SEGMENT_ENDINGS: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_OWN_ROOT: Final = "_sidetier"


class ObjectClass(StrEnum):
    """Class of an object."""

    SEGMENT = "segment"
    """A file of an archived segment, or the marker of an encrypted one."""
    QUARANTINE = "quarantine"
    """A record that the cluster has discarded, or the archive of a deleted topic."""
    METADATA = "metadata"
    """Everything else."""


def object_class(key: str) -> ObjectClass:
    """Return the class of the object with this key, relative to the root of the store."""
    parts = key.split("/")
    if parts[0] == _OWN_ROOT:
        is_moved = len(parts) > 2 and parts[2] in {"quarantine", "retired"}  # noqa: PLR2004 - the folder below the cluster
        return ObjectClass.QUARANTINE if is_moved else ObjectClass.METADATA
    is_of_segment = key.endswith(_SEGMENT_ENDINGS) or parse_marker(key) is not None
    return ObjectClass.SEGMENT if is_of_segment else ObjectClass.METADATA


def keeps_default_class(key: str, names: Collection[str]) -> bool:
    """Return whether the object with this key keeps the default storage class of the store.

    Besides objects with these last key components, these are the markers of encrypted segments:
    they are empty, and AWS bills at least 128 KB for an object of an infrequent-access class.
    """
    return key.rpartition("/")[2] in names or parse_marker(key) is not None


def with_class_tag(tags: Mapping[str, str], key: str, *, tagged: bool) -> dict[str, str]:
    """Return the tags of a new object: the given ones and, if `tagged`, its class's."""
    return {**tags, CLASS_TAG: object_class(key).value} if tagged else dict(tags)
