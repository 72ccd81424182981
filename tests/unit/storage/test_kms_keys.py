"""Refusals of AWS KMS: the error of each, what its text names, and whether it is retried."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import boto3
import pytest
from botocore.stub import Stubber

from sidetier.segments.errors import (
    AccessDeniedError,
    EncryptionKeyError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.encryption_keys import KMS_CONTEXT, Keyring, KmsKey
from sidetier.storage.fake import FakeStorage
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.settings import KmsKeySettings, RetryPolicy
from sidetier.storage.store_calls import error_kind
from tests.harness.encryption import settings

ARN = "arn:aws:kms:eu-central-1:111122223333:key/0a1b"
LOG = "c/orders-0/00000000000000000000.log"
SECRET, WRAPPED = bytes(range(32)), b"wrapped"
GENERATE = {"KeyId": ARN, "KeySpec": "AES_256", "EncryptionContext": KMS_CONTEXT}
GENERATED = {"KeyId": ARN, "Plaintext": SECRET, "CiphertextBlob": WRAPPED}
DECRYPT = {"KeyId": ARN, "CiphertextBlob": WRAPPED, "EncryptionContext": KMS_CONTEXT}
DECRYPTED = {"KeyId": ARN, "Plaintext": SECRET}


@dataclass(frozen=True, slots=True)
class Kms:
    """KMS, which answers each request as the stub tells it, in order."""

    stub: Stubber
    key: KmsKey

    def refuse(self, operation: str, code: str, status: int = 400) -> None:
        """Answer the next request with this refusal."""
        self.stub.add_client_error(operation, code, f"about {code}", http_status_code=status)

    def store(self, inner: FakeStorage, attempts: int = 3) -> RetryingStorage:
        """Return a store with retries that encrypts with this key."""
        # After a failure the ring asks again after one second. Half a second passes between two
        # looks at this clock, so each attempt asks once.
        ring = Keyring(settings("kms", kms=KmsKeySettings(ARN)), count(step=0.5).__next__)
        ring._keys = {"kms": self.key}
        policy = RetryPolicy(attempts, first_delay=0.001, max_delay=0.001)
        return RetryingStorage(EncryptingStorage(inner, ring, lambda _: True), policy)


@pytest.fixture
def kms() -> Iterator[Kms]:
    client = boto3.client(
        "kms", "eu-central-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    with Stubber(client) as stub:
        yield Kms(stub, KmsKey("kms", KmsKeySettings(ARN), client))
        stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("code", "status", "kind", "todo"),
    [
        ("AccessDeniedException", 400, AccessDeniedError, "see the policy in docs/encryption.md"),
        ("ExpiredTokenException", 403, AccessDeniedError, "see the policy"),
        ("ThrottlingException", 400, StoreThrottledError, ""),
        ("KMSInternalException", 500, StoreUnavailableError, ""),
        ("KeyUnavailableException", 500, StoreUnavailableError, ""),
        ("UnknownOfTomorrow", 503, StoreUnavailableError, ""),
        ("IncorrectKeyException", 400, EncryptionKeyError, "this key has not encrypted it"),
        ("InvalidCiphertextException", 400, EncryptionKeyError, "this key has not encrypted it"),
        ("DisabledException", 409, EncryptionKeyError, "see storage.encryption.keys"),
        ("KMSInvalidStateException", 409, EncryptionKeyError, "see storage.encryption.keys"),
        ("NotFoundException", 404, EncryptionKeyError, "see storage.encryption.keys"),
    ],
)
def test_each_refusal_has_an_error_that_names_operation_key_and_code(
    kms: Kms, code: str, status: int, kind: type[StorageError], todo: str
) -> None:
    kms.refuse("decrypt", code, status)
    with pytest.raises(kind) as caught:
        kms.key.unwrap(WRAPPED)
    assert type(caught.value) is kind
    assert caught.value.retry is (kind in {StoreThrottledError, StoreUnavailableError})
    outcome = error_kind(caught.value)
    assert (
        outcome
        == {
            AccessDeniedError: "access_denied",
            StoreThrottledError: "throttled",
            StoreUnavailableError: "unavailable",
            EncryptionKeyError: "encryption",
        }[kind]
    )
    text = str(caught.value)
    assert f"KMS Decrypt with key 'kms' ({ARN}): {status} {code}: about {code}" in text
    assert todo in text


def test_a_throttled_upload_is_retried_until_it_is_stored(kms: Kms) -> None:
    kms.refuse("generate_data_key", "ThrottlingException")
    kms.refuse("generate_data_key", "KMSInternalException", 500)
    kms.stub.add_response("generate_data_key", GENERATED, GENERATE)
    inner = FakeStorage()
    kms.store(inner).put_object(LOG, BytesBody(b"data"))
    assert inner.head_object(LOG).size > len(b"data")


def test_a_throttled_read_is_retried_and_the_data_key_is_asked_for_once(kms: Kms) -> None:
    kms.stub.add_response("generate_data_key", GENERATED, GENERATE)
    inner = FakeStorage()
    kms.store(inner).put_object(LOG, BytesBody(b"data"))
    kms.refuse("decrypt", "ThrottlingException")
    kms.stub.add_response("decrypt", DECRYPTED, DECRYPT)
    reader = kms.store(inner)
    for _ in range(3):
        with reader.get_object_input_stream(LOG, 1, 3) as stream:
            assert stream.read() == b"at"


def test_kms_that_stays_throttled_ends_an_upload_with_nothing_stored(kms: Kms) -> None:
    for _ in range(2):
        kms.refuse("generate_data_key", "ThrottlingException")
    inner = FakeStorage()
    with pytest.raises(StoreThrottledError, match="KMS GenerateDataKey with key 'kms'"):
        kms.store(inner, attempts=2).put_object(LOG, BytesBody(b"data"))
    assert inner.contents() == {}


def test_a_denied_upload_is_not_retried_and_stores_nothing(kms: Kms) -> None:
    kms.refuse("generate_data_key", "AccessDeniedException")
    inner = FakeStorage()
    with pytest.raises(AccessDeniedError, match=r"GenerateDataKey.*AccessDeniedException"):
        kms.store(inner).put_object(LOG, BytesBody(b"data"))
    assert inner.contents() == {}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDeniedException", AccessDeniedError),
        ("InvalidCiphertextException", EncryptionKeyError),
    ],
)
def test_a_refused_read_names_the_object_and_is_not_retried(
    kms: Kms, code: str, kind: type[StorageError]
) -> None:
    kms.stub.add_response("generate_data_key", GENERATED, GENERATE)
    inner = FakeStorage()
    kms.store(inner).put_object(LOG, BytesBody(b"data"))
    kms.refuse("decrypt", code)
    with pytest.raises(kind, match=f"^{LOG}: KMS Decrypt.*{code}"):
        kms.store(inner).get_object_input_stream(LOG, 0, 1)
    # The refusal is not kept: a corrected policy works without a restart.
    kms.stub.add_response("decrypt", DECRYPTED, DECRYPT)
    assert kms.store(inner).get_object(LOG).data == b"data"
