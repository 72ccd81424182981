"""Encryption on a real S3 server, with keys of AWS KMS as moto imitates it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import pytest

from sidetier.segments.errors import EncryptionKeyError, StoreUnavailableError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.encryption_keys import KMS_CONTEXT, Keyring, KmsKey
from sidetier.storage.factory import check_encryption, open_storage
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions
from sidetier.storage.s3 import S3Storage
from sidetier.storage.settings import EncryptionSettings, KmsKeySettings, StorageEndpoint
from tests.harness.stores import moto_server, s3_settings

if TYPE_CHECKING:
    from tests.harness.s3 import S3Bucket

LOG = "c/orders-0/00000000000000000000.log"
DATA = bytes(i * 31 % 251 for i in range(1 << 20)) * 8
"""8 MiB: two parts of the suite's 5 MiB."""


@pytest.fixture(scope="module")
def kms_url() -> Iterator[str]:
    with moto_server() as settings:
        yield str(settings.endpoint_url)


@pytest.fixture
def kms(kms_url: str, monkeypatch: pytest.MonkeyPatch) -> KmsKeySettings:
    """A new key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = boto3.client("kms", region_name="us-east-1", endpoint_url=kms_url)
    arn = client.create_key()["KeyMetadata"]["Arn"]
    return KmsKeySettings(arn, endpoint_url=kms_url)


@pytest.mark.integration
def test_a_segment_on_s3_is_encrypted_with_a_key_of_kms(
    s3_bucket: "S3Bucket", kms: KmsKeySettings
) -> None:
    chosen = EncryptionSettings(keys=(("kms", kms),), key="kms", topics=("orders",))
    url = f"s3://{s3_bucket.name}/archive"
    plain = StorageEndpoint(url, s3=s3_settings(s3_bucket))
    endpoint = StorageEndpoint(url, s3=s3_settings(s3_bucket), encryption=chosen)
    check_encryption(chosen)
    store = open_storage(endpoint)
    etag = store.put_object(
        LOG, BytesBody(DATA), PutOptions(metadata={"a": "1"}, condition=IfAbsent())
    )
    store.close()
    reader = open_storage(endpoint)
    assert [(row.key, row.size, row.etag) for row in reader.list_objects("c/")] == [
        (LOG, len(DATA), etag)
    ]
    head = reader.head_object(LOG, with_checksum=True)
    assert (head.size, head.metadata) == (len(DATA), {"a": "1"})
    with reader.get_object_input_stream(LOG, 100_000, 4_000_000, condition=IfMatch(etag)) as stream:
        assert stream.read() == DATA[100_000:4_000_000]
    without = open_storage(plain)
    assert [row.size for row in without.list_objects("c/")] == [len(DATA)]
    with pytest.raises(EncryptionKeyError, match="the key 'kms', which is not configured"):
        without.get_object_input_stream(LOG, 0, 10)
    reader.copy_object(LOG, "_sidetier/c/quarantine/orders-0/x/00000000000000000000.log")
    reader.delete_objects([row.key for row in reader.list_objects("")])
    driver = S3Storage(s3_bucket.name, "archive", s3_settings(s3_bucket))
    assert list(driver.list_objects("")) == []
    for opened in (reader, without, driver):
        opened.close()


def test_keys_of_kms_refuse_other_keys_contexts_and_outages(kms: KmsKeySettings) -> None:
    key = KmsKey("kms", kms)
    secret, wrapped = key.generate()
    assert len(secret) == 32
    assert key.unwrap(wrapped) == secret
    client = boto3.client("kms", region_name="us-east-1", endpoint_url=kms.endpoint_url)
    assert client.decrypt(CiphertextBlob=wrapped, EncryptionContext=KMS_CONTEXT)["Plaintext"]
    with pytest.raises(EncryptionKeyError, match=r"KMS Decrypt.*encryption\.keys"):
        key.unwrap(b"no wrapped key")
    missing = KmsKey("gone", KmsKeySettings("alias/gone", "us-east-1", kms.endpoint_url))
    with pytest.raises(EncryptionKeyError, match="KMS GenerateDataKey with key 'gone'"):
        missing.generate()
    away = KmsKey("away", KmsKeySettings(kms.key_id, endpoint_url="http://127.0.0.1:9"))
    with pytest.raises(StoreUnavailableError) as caught:
        away.unwrap(wrapped)
    assert caught.value.retry


def test_one_data_key_serves_many_objects(kms: KmsKeySettings) -> None:
    chosen = EncryptionSettings(keys=(("kms", kms),), key="kms")
    ring = Keyring(chosen)
    store = EncryptingStorage(FakeStorage(), ring, lambda _: True)
    for base in range(20):
        store.put_object(f"c/t-0/{base:020d}.log", BytesBody(b"data"))
    first, second = ring.data_key(), ring.data_key()
    assert first is second
    assert Keyring(chosen).unwrap("kms", first.wrapped, "x") == first.secret
