"""The obstore driver against a faulty imitation of Google Cloud Storage."""

import multiprocessing
import pickle
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Final

import pytest

from sidetier.archive.access import open_archive
from sidetier.config.storage import GcsConfig, StorageConfig
from sidetier.config.types import SecretRef
from sidetier.segments.errors import (
    AccessDeniedError,
    ChecksumMismatchError,
    InvalidRequestError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.object_clients import gcs_clients
from sidetier.storage.object_store import ObjectStorage
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.settings import MIB, AttemptDeadline, GcsSettings, RetryPolicy
from tests.harness.gcs_server import GcsBucket
from tests.harness.s3_proxy import S3Proxy, answer, cut, cut_answer, first, hang, lose_the_answer

QUICK: Final = RetryPolicy(attempts=4, first_delay=0.01, max_delay=0.02, max_elapsed=30)
LARGE: Final = bytes(range(256)) * (9 * MIB // 256)


@pytest.fixture
def proxy(gcs_bucket: GcsBucket) -> Iterator[S3Proxy]:
    with S3Proxy(gcs_bucket.server.port) as proxy:
        yield proxy


@pytest.fixture
def store(gcs_bucket: GcsBucket, proxy: S3Proxy) -> ObjectStorage:
    return open_store(gcs_bucket, proxy.url)


def open_store(
    bucket: GcsBucket, url: str, name: str | None = None, token: str | None = None
) -> ObjectStorage:
    settings = GcsSettings(
        endpoint_url=url, access_token=token or bucket.server.token, read_timeout=1.0
    )
    deadline = AttemptDeadline(base=3.0, connect=2.0)
    clients = gcs_clients(f"gs://{name or bucket.name}/root", settings, deadline)
    return ObjectStorage(clients, deadline)


def direct(bucket: GcsBucket) -> ObjectStorage:
    return open_store(bucket, bucket.server.url)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (500, "InternalError", StoreUnavailableError),
        (502, "BadGateway", StoreUnavailableError),
        (503, "ServiceUnavailable", StoreUnavailableError),
        (503, "SlowDown", StoreThrottledError),
        (503, "ServerBusy", StoreThrottledError),
        (429, "TooManyRequests", StoreThrottledError),
        (408, "RequestTimeout", StoreTimeoutError),
        (500, "OperationTimedOut", StoreTimeoutError),
        (409, "ConditionalRequestConflict", StoreUnavailableError),
        (409, "OperationAborted", StoreUnavailableError),
        (409, "ContainerBeingDeleted", StoreUnavailableError),
        (409, "BlobAlreadyExists", PreconditionFailedError),
        (412, "PreconditionFailed", PreconditionFailedError),
        (412, "ConditionNotMet", PreconditionFailedError),
        (401, "AuthenticationRequired", AccessDeniedError),
        (403, "AccessDenied", AccessDeniedError),
        (404, "NoSuchBucket", InvalidRequestError),
        (404, "ContainerNotFound", InvalidRequestError),
        (400, "InvalidStorageClass", InvalidRequestError),
        (501, "NotImplemented", InvalidRequestError),
        (507, "InsufficientStorage", StoreFullError),
    ],
)
def test_refusal_is_translated_and_sent_once(
    store: ObjectStorage, proxy: S3Proxy, status: int, code: str, expected: type[StorageError]
) -> None:
    proxy.misbehave(first(1, answer(status, code)))
    with pytest.raises(expected) as caught:
        store.put_object("dir/k", BytesBody(b"x"), PutOptions(condition=IfAbsent()))
    assert type(caught.value) is expected
    assert "/root/dir/k" in str(caught.value)
    assert code in str(caught.value)
    assert "Debug source" not in str(caught.value)
    assert len(proxy.seen) == 1, "obstore's own retries must stay off"
    store.put_object("dir/k", BytesBody(b"x"), PutOptions(condition=IfAbsent()))


@pytest.mark.parametrize(
    ("fault", "expected"), [(hang, StoreTimeoutError), (cut, StoreUnavailableError)]
)
def test_request_without_an_answer_is_store_unavailable(
    store: ObjectStorage, proxy: S3Proxy, fault: object, expected: type[StorageError]
) -> None:
    proxy.misbehave(first(4, fault))  # type: ignore[arg-type]
    for call in (
        lambda: store.put_object("k", BytesBody(b"x")),
        lambda: store.head_object("k"),
        lambda: store.get_object("k"),
        lambda: list(store.list_objects("")),
    ):
        with pytest.raises(expected):
            call()
    proxy.heal()


def test_lost_answer_is_ambiguous_and_the_write_is_sent_once(
    store: ObjectStorage, proxy: S3Proxy
) -> None:
    retrying = RetryingStorage(store, QUICK)
    proxy.misbehave(first(1, lose_the_answer, method="PUT"))
    with pytest.raises(PreconditionFailedError) as caught:
        retrying.put_object("k", BytesBody(b"mine"), PutOptions(condition=IfAbsent()))
    assert caught.value.ambiguous
    assert store.get_object("k").data == b"mine"


def test_truncated_answer_is_an_error(store: ObjectStorage, proxy: S3Proxy) -> None:
    store.put_object("k", BytesBody(LARGE))
    # A large object costs `get_object` a second request.
    proxy.misbehave(first(3, cut_answer, method="GET"))
    with pytest.raises(StoreUnavailableError):
        store.get_object("k")
    with (
        store.get_object_input_stream("k") as stream,
        pytest.raises(StoreUnavailableError),
    ):
        stream.read()
    assert store.get_object("k").data == LARGE


@pytest.mark.parametrize("steps_done", [0, 1, 2])
def test_interrupted_large_create_is_complete_or_absent(
    store: ObjectStorage, proxy: S3Proxy, gcs_bucket: GcsBucket, steps_done: int
) -> None:
    """No incomplete object is listed, and a retry completes the write."""
    fault = answer(503, "ServiceUnavailable")
    proxy.misbehave(
        (
            first(9, fault, method="PUT", part="new/"),
            first(1, fault, method="PUT", part="big"),
            first(1, fault, method="DELETE"),
        )[steps_done]
    )
    if steps_done == 2:
        store.put_object("big", BytesBody(LARGE), PutOptions(condition=IfAbsent()))
    else:
        with pytest.raises(StoreUnavailableError):
            store.put_object("big", BytesBody(LARGE), PutOptions(condition=IfAbsent()))
    proxy.heal()
    there = direct(gcs_bucket)
    keys = [row.key for row in there.list_objects("")]
    assert keys == (["big"] if steps_done == 2 else [])
    assert there.list_directories("") == []
    if keys:
        assert there.get_object("big").data == LARGE
        with pytest.raises(PreconditionFailedError):
            store.put_object("big", BytesBody(LARGE), PutOptions(condition=IfAbsent()))
    else:
        etag = store.put_object("big", BytesBody(LARGE), PutOptions(condition=IfAbsent()))
        assert there.head_object("big").etag == etag


def test_bytes_changed_on_the_store_are_detected(
    store: ObjectStorage, gcs_bucket: GcsBucket
) -> None:
    store.put_object("k", BytesBody(b"right"))
    gcs_bucket.server.damage(gcs_bucket.name, "root/k", b"wrong")
    with pytest.raises(ChecksumMismatchError, match="root/k"):
        store.get_object("k")


def test_missing_bucket_is_named(gcs_bucket: GcsBucket) -> None:
    store = open_store(gcs_bucket, gcs_bucket.server.url, name="no-such-bucket")
    with pytest.raises(InvalidRequestError, match=r"no-such-bucket.*create the bucket"):
        store.put_object("k", BytesBody(b"x"))


def test_unknown_token_is_refused(gcs_bucket: GcsBucket) -> None:
    store = open_store(gcs_bucket, gcs_bucket.server.url, token="another-token")
    with pytest.raises(AccessDeniedError):
        store.put_object("k", BytesBody(b"x"))


def test_conditional_put_over_a_deleted_object_is_refused(store: ObjectStorage) -> None:
    etag = store.put_object("k", BytesBody(b"x"))
    store.delete_object("k")
    with pytest.raises(PreconditionFailedError):
        store.put_object("k", BytesBody(b"y"), PutOptions(condition=IfMatch(etag)))


def test_configuration_opens_the_store(
    gcs_bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCS_TOKEN_OF_A_TEST", gcs_bucket.server.token)
    config = StorageConfig(
        url=f"gs://{gcs_bucket.name}/root",
        gcs=GcsConfig(
            endpoint_url=gcs_bucket.server.url,
            access_token=SecretRef(env="GCS_TOKEN_OF_A_TEST"),
            storage_class="NEARLINE",
        ),
    )
    with open_archive("c", config) as archive:
        for key in ("t-0/0.log", "t-0/0.log.encrypted-5000", "t-0/offset.wm"):
            archive.default_store.put_object(key, BytesBody(b"x"), PutOptions(condition=IfAbsent()))
        assert archive.default_store.capabilities.conditional_writes
    stored = gcs_bucket.server.objects(gcs_bucket.name)
    assert {key: one.headers.get("x-goog-storage-class") for key, one in stored.items()} == {
        "root/t-0/0.log": "NEARLINE",
        "root/t-0/0.log.encrypted-5000": None,
        "root/t-0/offset.wm": None,
    }


def test_store_cannot_be_pickled(store: ObjectStorage) -> None:
    with pytest.raises(TypeError, match="secrets"):
        pickle.dumps(store)


def _head_in_child(store: ObjectStorage, told: Connection) -> None:
    try:
        store.head_object("k")
    except Exception as error:  # noqa: BLE001 - the parent looks at it
        told.send((type(error).__name__, str(error)))
    else:
        told.send(("nothing", ""))


def test_child_forked_after_the_first_request_gets_an_error(
    store: ObjectStorage,
) -> None:
    """Without this check, obstore would hang there forever."""
    store.put_object("k", BytesBody(b"x"))
    mine, its = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_head_in_child, args=(store, its))
    child.start()
    try:
        assert mine.poll(20), "the child hangs"
        name, text = mine.recv()
    finally:
        child.kill()
        child.join()
    assert name == "InvalidRequestError"
    assert "forkserver" in text
    assert store.head_object("k").size == 1
