"""Facts about the keys of `storage.encryption`: whether each works, is the key that the other
sidecars have, and decrypts what is stored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.archive.access import ArchiveAccess, encryption_settings
from sidetier.archive.objects.key_fingerprints import check_stored_fingerprints
from sidetier.cli.stores import open_every_store
from sidetier.config.model import Config
from sidetier.config.storage import EncryptionConfig
from sidetier.config.types import matches_any
from sidetier.segments.errors import (
    ConfigurationError,
    EncryptionError,
    MalformedObjectError,
    ObjectNotFoundError,
    SidetierError,
)
from sidetier.segments.listing import read_listing
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import check_encryption
from sidetier.storage.settings import EncryptionSettings
from sidetier.uploader.watching.disk import list_names

_MAX_PARTITIONS: Final = 5
"""Partitions of which stored segments are read."""


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """One key of `storage.encryption.keys`.

    Attributes:
        encrypts: Whether new segments are encrypted with it (`storage.encryption.key`).
        error: Why it cannot wrap a data key and unwrap it.
    """

    name: str
    encrypts: bool = False
    error: SidetierError | None = None


def key_facts(config: Config) -> Iterator[KeyFacts]:
    """Wrap and unwrap a data key with each configured key. Two requests for each key of KMS."""
    encryption = config.storage.encryption
    if encryption is None:
        return
    for name, key in sorted(encryption.keys.items()):
        error = None
        try:
            # Alone: a key that cannot be read must not hide the others.
            check_encryption(encryption_settings(EncryptionConfig(keys={name: key}, key=name)))
        except SidetierError as caught:
            error = caught
        yield KeyFacts(name, encrypts=name == encryption.key, error=error)


def stored_facts(
    config: Config, directories: Mapping[TopicPartition, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compare the keys with what is stored; both results are empty without encryption.

    Returns:
        Why keys differ from the other sidecars' keys, and why stored segments of the partitions in
        `directories` cannot be read.

    Raises:
        SidetierError: A store does not answer, or cannot be opened.
    """
    encryption = config.storage.encryption
    if encryption is None:
        return (), ()
    with open_every_store(config.with_short_timeouts()) as stores:
        return (
            tuple(_other_fingerprints(stores, encryption)),
            tuple(_undecryptable(stores, encryption, directories)),
        )


def _other_fingerprints(stores: ArchiveAccess, encryption: EncryptionConfig) -> Iterator[str]:
    """Compare the keys in files and variables with the fingerprints on each store.

    Makes one request for each of them.
    """
    keys = encryption_settings(encryption).keys
    for store in stores.by_endpoint.values():
        for key in keys:
            try:
                check_stored_fingerprints(store, stores.layout, EncryptionSettings(keys=(key,)))
            except (ConfigurationError, MalformedObjectError) as error:
                yield str(error)


def _undecryptable(
    stores: ArchiveAccess, encryption: EncryptionConfig, directories: Mapping[TopicPartition, str]
) -> Iterator[str]:
    """Read a byte of stored segments of a few encrypted partitions; yield why one cannot be read.

    The segments are the first and the last closed one on this host's disk. Segments that are not
    stored yet are left out.
    """
    chosen = [tp for tp in sorted(directories) if matches_any(encryption.topics, tp.topic)]
    for tp in chosen[:_MAX_PARTITIONS]:
        closed = read_listing(list_names(directories[tp])).closed
        for base in sorted({segment.base_offset for segment in (*closed[:1], *closed[-1:])}):
            key = stores.layout.object_key(tp, base, FileKind.LOG)
            try:
                with stores.store(tp.topic).get_object_input_stream(key, 0, 1) as stream:
                    stream.read()
            except ObjectNotFoundError:
                continue
            except EncryptionError as error:
                yield str(error)
