"""Keys that wrap data keys: 32 bytes of this configuration, or a key of AWS KMS.

A data key encrypts objects; it is stored in their headers, wrapped by a key. So a new key needs no
object to be written again: new data keys are wrapped by it, and the old one still unwraps the keys
of old objects.

Neither keys nor data keys are part of a text or a `repr`.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from sidetier.segments.errors import (
    AccessDeniedError,
    EncryptionError,
    EncryptionKeyError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    TransientStorageError,
)
from sidetier.segments.lru import Lru
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.encrypted_format import MAX_WRAPPED, missing_key
from sidetier.storage.settings import EncryptionSettings, KmsKeySettings, LocalKeySettings

DATA_KEY_BYTES: Final = 32
DATA_KEY_SECONDS: Final = 3600.0
DATA_KEY_OBJECTS: Final = 1000
"""A process uses a data key for at most this time and this number of objects, whichever ends first:
AWS KMS is asked rarely.
"""
OLD_DATA_KEY_SECONDS: Final = 24 * 3600.0
"""Age up to which a data key is used while KMS does not answer. Not a weakness of the objects: each
derives its own key from the data key and a salt.
"""
_PAUSE_SECONDS: Final = 1.0
"""KMS is not asked for another data key so soon after it has failed."""
_MAX_UNWRAPPED: Final = 1000
"""Unwrapped data keys that a process keeps."""
KMS_CONTEXT: Final[Mapping[str, str]] = {"sidetier": "segment"}
"""Encryption context: a policy can allow the key for it alone."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A data key, and how it is stored in a header."""

    key_name: str
    wrapped: bytes
    secret: bytes = field(repr=False)


class WrappingKey(Protocol):
    """A key that wraps data keys. Its errors are `EncryptionKeyError` or other `StorageError`s."""

    def generate(self) -> tuple[bytes, bytes]:
        """Return a new data key, and the data key wrapped."""
        ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the data key.

        Raises:
            EncryptionKeyError: This key has not wrapped it. The text has the reason, without the
                object.
        """
        ...


class LocalKey:
    """A key of 32 bytes, which wraps data keys by AES Key Wrap (RFC 3394).

    Args:
        name: Its name in the configuration.
        secret: The 32 bytes.
    """

    def __init__(self, name: str, secret: bytes) -> None:
        self._name = name
        self._secret = secret

    def generate(self) -> tuple[bytes, bytes]:
        """Wrap a random key with AES key wrap (RFC 3394); no request."""
        secret = os.urandom(DATA_KEY_BYTES)
        return secret, aes_key_wrap(self._secret, secret)

    def unwrap(self, wrapped: bytes) -> bytes:
        """Unwrap with AES key wrap (RFC 3394); no request."""
        try:
            return aes_key_unwrap(self._secret, wrapped)
        except (InvalidUnwrap, ValueError):
            raise EncryptionKeyError(
                f"the key {self._name!r} of storage.encryption.keys is not the key of this name "
                "that encrypted it: give the key that the sidecar had then"
            ) from None


_THROTTLED: Final = frozenset(
    {"LimitExceededException", "ThrottlingException", "RequestLimitExceeded"}
)
_UNAVAILABLE: Final = frozenset(
    {"DependencyTimeoutException", "KMSInternalException", "KeyUnavailableException"}
)
_DENIED: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_OTHER_KEY: Final = frozenset({"IncorrectKeyException", "InvalidCiphertextException"})
_FIRST_STATUS_OF_OUTAGE: Final = 500
_ARN_REGION: Final = 3


class KmsKey:
    """A symmetric key of AWS KMS. Credentials come from AWS's credential chain.

    Args:
        name: Its name in the configuration.
        settings: The key, and where it is.
        client: A client; if None, one is created when first needed.
    """

    def __init__(
        self,
        name: str,
        settings: KmsKeySettings,
        client: Any = None,  # noqa: ANN401 - its stubs are not installed
    ) -> None:
        self._name = name
        self._settings = settings
        self._client = client

    def generate(self) -> tuple[bytes, bytes]:
        """One request (GenerateDataKey)."""
        answer = self._ask(
            "GenerateDataKey",
            lambda kms: kms.generate_data_key(
                KeyId=self._settings.key_id, KeySpec="AES_256", EncryptionContext=KMS_CONTEXT
            ),
        )
        return answer["Plaintext"], answer["CiphertextBlob"]

    def unwrap(self, wrapped: bytes) -> bytes:
        """One request (Decrypt)."""
        answer = self._ask(
            "Decrypt",
            lambda kms: kms.decrypt(
                CiphertextBlob=wrapped,
                KeyId=self._settings.key_id,
                EncryptionContext=KMS_CONTEXT,
            ),
        )
        secret: bytes = answer["Plaintext"]
        return secret

    def _ask(self, operation: str, request: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        # boto3 takes some 30 MB: a process without a key of KMS does not load it.
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        from sidetier.storage.boto_errors import failure  # noqa: PLC0415

        where = f"KMS {operation} with key {self._name!r} ({self._settings.key_id})"
        try:
            if self._client is None:
                self._client = self._connect()
            return request(self._client)
        except ClientError as error:
            raise _refusal(where, error) from error
        except (BotoCoreError, OSError, ValueError) as error:
            raise failure(where, error) from error

    def _connect(self) -> Any:  # noqa: ANN401
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        config = Config(
            connect_timeout=5,
            read_timeout=10,
            # The retry layer of the store is the only one.
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        session = boto3.session.Session()
        return session.client(
            "kms",
            region_name=self._settings.region or _region_of(self._settings.key_id),
            endpoint_url=self._settings.endpoint_url,
            config=config,
        )


def _region_of(key_id: str) -> str | None:
    """Return the region in an ARN, `arn:aws:kms:REGION:ACCOUNT:key/ID`."""
    parts = key_id.split(":")
    return parts[_ARN_REGION] or None if parts[0] == "arn" and len(parts) > _ARN_REGION else None


def _refusal(where: str, error: Any) -> StorageError:  # noqa: ANN401 - a ClientError
    answer: dict[str, Any] = error.response
    code = answer.get("Error", {}).get("Code", "")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = f"{where}: {status} {code}: {answer.get('Error', {}).get('Message', '')}"
    if code in _THROTTLED:
        return StoreThrottledError(text)
    if code in _UNAVAILABLE or status >= _FIRST_STATUS_OF_OUTAGE:
        return StoreUnavailableError(text)
    if code in _DENIED:
        return AccessDeniedError(f"{text}: see the policy in docs/encryption.md")
    if code in _OTHER_KEY:
        return EncryptionKeyError(
            f"{text}: this key has not encrypted it: give the key that had this name in "
            "storage.encryption.keys then, or the object's header was changed"
        )
    return EncryptionKeyError(f"{text}: see storage.encryption.keys")


class Keyring:
    """The configured keys, and the data keys that this process knows. Thread-safe.

    Args:
        settings: The keys, and which of them encrypts.
        clock: Returns monotonic seconds.
    """

    def __init__(self, settings: EncryptionSettings, clock: Clock = monotonic) -> None:
        self._active = settings.key
        self._keys = {name: _key(name, key) for name, key in settings.keys}
        self._clock = clock
        self._guard = threading.Lock()
        """Never held during a request."""
        self._answered = threading.Condition(self._guard)
        self._is_asking = False
        """Whether a thread asks for a data key."""
        self._failure: StorageError | None = None
        """Why the last request for a data key failed; None if it did not."""
        self._failed_at = 0.0
        self._data_key: DataKey | None = None
        self._made_at = 0.0
        self._uses = 0
        self._unwrapped = Lru[tuple[str, bytes], bytes](_MAX_UNWRAPPED)

    def data_key(self) -> DataKey:
        """Return the data key for a new object.

        One thread asks KMS. Meanwhile, the others use the old data key, or wait for the answer if
        there is none. While KMS does not answer, the old data key is used up to an age of 24 hours.

        Raises:
            StorageError: KMS refuses or does not answer. Other calls fail with the same error for
                one second, without a request.
        """
        with self._guard:
            while True:
                now = self._clock()
                current, age = self._data_key, now - self._made_at
                is_fresh = age < DATA_KEY_SECONDS and self._uses < DATA_KEY_OBJECTS
                failed = self._failure if now < self._failed_at + _PAUSE_SECONDS else None
                is_usable = age < OLD_DATA_KEY_SECONDS and (
                    self._is_asking or isinstance(failed, TransientStorageError)
                )
                if current is not None and (is_fresh or is_usable):
                    self._uses += 1
                    return current
                if self._is_asking:
                    self._answered.wait()
                elif failed is not None:
                    raise type(failed)(str(failed)) from failed
                else:
                    self._is_asking = True
                    break
        made: DataKey | None = None
        failure: StorageError | None = None
        try:
            made = self._generate()
        except StorageError as error:
            failure = error
        finally:
            with self._guard:
                self._is_asking = False
                self._failure, self._failed_at = failure, self._clock()
                if made is not None:
                    self._data_key, self._made_at, self._uses = made, self._clock(), 0
                self._answered.notify_all()
        # Takes the new data key, or the old one, or raises the failure.
        return self.data_key()

    def unwrap(self, key_name: str, wrapped: bytes, where: str) -> bytes:
        """Return the data key of an object.

        Args:
            key_name: Name of the key that has wrapped it.
            wrapped: The wrapped data key.
            where: The object, for errors.

        Raises:
            EncryptionKeyError: The key is not configured, or is another one.
            StorageError: KMS refuses or does not answer.
        """
        known = self._unwrapped.get((key_name, wrapped))
        if known is not None:
            return known
        if key_name not in self._keys:
            raise missing_key(key_name, where, self._keys)
        try:
            secret = self._keys[key_name].unwrap(wrapped)
        except StorageError as error:
            raise type(error)(f"{where}: {error}") from error
        if len(secret) != DATA_KEY_BYTES:
            raise EncryptionKeyError(f"{where}: its data key has {len(secret)} bytes, not 32")
        self._unwrapped.put((key_name, wrapped), secret)
        return secret

    def check(self) -> None:
        """Check that the key that encrypts can wrap a data key and unwrap it. Two requests of KMS.

        Raises:
            EncryptionKeyError: The key cannot be used.
            StorageError: KMS refuses or does not answer.
        """
        if self._active is None:
            return
        fresh = self.data_key()
        where = f"storage.encryption.key {self._active!r}"
        if self.unwrap(fresh.key_name, fresh.wrapped, where) != fresh.secret:
            raise EncryptionKeyError(f"{where} does not return the data key that it has wrapped")

    def _generate(self) -> DataKey:
        if self._active is None:
            raise EncryptionError("storage.encryption.key is not set, so nothing can be encrypted")
        secret, wrapped = self._keys[self._active].generate()
        if len(wrapped) > MAX_WRAPPED:
            raise EncryptionError(
                f"storage.encryption.key {self._active!r}: a wrapped data key has {len(wrapped)} "
                f"bytes, and a header has room for {MAX_WRAPPED}"
            )
        return DataKey(self._active, wrapped, secret)


def _key(name: str, settings: LocalKeySettings | KmsKeySettings) -> WrappingKey:
    if isinstance(settings, KmsKeySettings):
        return KmsKey(name, settings)
    return LocalKey(name, settings.secret)
