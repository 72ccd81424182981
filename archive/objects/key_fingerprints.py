"""`keys/<name>.json`: fingerprints of encryption keys, so that no two brokers give one name to
different keys.

The fingerprint is the HMAC-SHA256 of a constant with the key. The key cannot be computed from it.
"""

import hashlib
import hmac
from dataclasses import asdict, dataclass
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import (
    ConfigurationError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged
from sidetier.storage.settings import EncryptionSettings, LocalKeySettings

_MESSAGE: Final = b"sidetier encryption key"


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    hmac_sha256: str


_CODEC: Final = JsonCodec(
    _Fingerprint,
    "the fingerprint of a key",
    remedy="Delete it, and start the sidecar that has the right key first",
)


def fingerprint(key: LocalKeySettings) -> str:
    """Return the fingerprint, 64 hexadecimal digits."""
    return hmac.digest(key.secret, _MESSAGE, hashlib.sha256).hex()


def check_stored_fingerprints(
    store: RemoteStorage, layout: ArchiveLayout, encryption: EncryptionSettings | None
) -> bool:
    """Check the configured keys against the stored fingerprints, and write nothing.

    Keys of AWS KMS have no fingerprint: KMS knows which key has wrapped a data key. One request for
    each other key.

    Returns:
        Whether nothing has to be written: the key that encrypts has a stored fingerprint, or needs
        none.

    Raises:
        ConfigurationError: Another key has this name.
        MalformedObjectError: A fingerprint does not parse.
    """
    is_complete = True
    for name, key in _local_keys(encryption):
        stored = _read(store, layout, name)
        if stored is not None:
            _check(stored, key, layout, name)
        elif encryption is not None and name == encryption.key:
            is_complete = False
    return is_complete


def write_or_check_fingerprint(
    store: RemoteStorage, layout: ArchiveLayout, encryption: EncryptionSettings | None
) -> None:
    """Write the fingerprint of the key that encrypts, or check the stored ones.

    It is written before the first encrypted segment. A kill right after it leaves the fingerprint,
    which the next start compares.

    Raises:
        ConfigurationError: Another key has this name.
        MalformedObjectError: A fingerprint does not parse.
    """
    if encryption is None or check_stored_fingerprints(store, layout, encryption):
        return
    [(name, key)] = (entry for entry in _local_keys(encryption) if entry[0] == encryption.key)
    body = BytesBody(_CODEC.encode(asdict(_Fingerprint(fingerprint(key)))))
    try:
        store.put_object(
            layout.key_fingerprint_key(name), body, PutOptions(condition=unchanged(None))
        )
    except PreconditionFailedError:  # another broker's sidecar wrote it first
        check_stored_fingerprints(store, layout, encryption)


def _local_keys(encryption: EncryptionSettings | None) -> list[tuple[str, LocalKeySettings]]:
    keys = () if encryption is None else encryption.keys
    return [(name, key) for name, key in keys if isinstance(key, LocalKeySettings)]


def _read(store: RemoteStorage, layout: ArchiveLayout, name: str) -> str | None:
    # An unknown version refuses the start of a sidecar, before it holds any segment. Unchecked, it
    # might encrypt segments with a key that no reader has.
    stored = _CODEC.read(store, layout.key_fingerprint_key(name))
    return None if stored is None else stored.value.hmac_sha256


def _check(stored: str, key: LocalKeySettings, layout: ArchiveLayout, name: str) -> None:
    own = fingerprint(key)
    if own != stored:
        raise ConfigurationError(
            f"storage.encryption.keys: the key {name!r} of this broker has the fingerprint "
            f"{own[:16]}, but the key of this name that the other sidecars of cluster "
            f"{layout.cluster!r} use has {stored[:16]} ({layout.key_fingerprint_key(name)}): give "
            "all brokers the same file, or this key another name"
        )
