"""Conditions of a real S3 server behind a gateway that spoils them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sidetier.cli.inspect.store import ignored_conditions, refused_condition
from sidetier.segments.errors import PreconditionFailedError, RefusedConditionError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.s3 import S3Storage
from tests.harness import s3_proxy
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.stores import s3_settings

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(s3_bucket: S3Bucket) -> Iterator[S3Proxy]:
    with S3Proxy(s3_bucket.server.port) as proxy:
        yield proxy


@pytest.fixture
def store(s3_bucket: S3Bucket, proxy: S3Proxy) -> RetryingStorage:
    settings = replace(s3_settings(s3_bucket), endpoint_url=proxy.url)
    return RetryingStorage(S3Storage(s3_bucket.name, "", settings), url="s3://archive")


def test_conditions_of_a_sound_server_are_kept(store: RetryingStorage) -> None:
    store.put_object("k", BytesBody(b"1"), PutOptions(condition=IfAbsent()))
    assert ignored_conditions(store, "k") == ()
    assert refused_condition(store, "k") is None
    with pytest.raises(PreconditionFailedError):
        store.put_object("k", BytesBody(b"2"), PutOptions(condition=IfAbsent()))


def test_refused_condition_that_holds_is_named(store: RetryingStorage, proxy: S3Proxy) -> None:
    etag = store.put_object("k", BytesBody(b"1"))
    proxy.misbehave(s3_proxy.always(s3_proxy.refuse_replacing))
    with pytest.raises(RefusedConditionError, match="s3://archive refuses a condition that holds"):
        store.put_object("k", BytesBody(b"2"), PutOptions(condition=IfMatch(etag)))
    assert ignored_conditions(store, "k") == ()
    assert "put k with If-Match" in (refused_condition(store, "k") or "")
    # A refusal that is justified stays one, also by such a server.
    with pytest.raises(PreconditionFailedError):
        store.put_object("k", BytesBody(b"2"), PutOptions(condition=IfMatch("another")))
    assert store.get_object("k").data == b"1"


def test_weak_etags_are_named(store: RetryingStorage, proxy: S3Proxy) -> None:
    proxy.misbehave(s3_proxy.always(s3_proxy.weaken_etags))
    store.put_object("k", BytesBody(b"1"))
    with pytest.raises(RefusedConditionError, match="weak"):
        store.put_object(
            "k", BytesBody(b"2"), PutOptions(condition=IfMatch(store.head_object("k").etag))
        )
    assert "weak etags" in (refused_condition(store, "k") or "")
    assert store.get_object("k").data == b"1"


@pytest.mark.parametrize("size", [1, 200_000], ids=["small", "large"])
def test_304_in_place_of_412_is_a_refused_condition(
    store: RetryingStorage, proxy: S3Proxy, size: int
) -> None:
    store.put_object("k", BytesBody(b"1"))
    not_modified = s3_proxy.answer(304, "")
    proxy.misbehave(lambda method, _key: not_modified if method == "PUT" else None)
    with pytest.raises(PreconditionFailedError):
        store.put_object("k", BytesBody(b"x" * size), PutOptions(condition=IfAbsent()))
    assert store.get_object("k").data == b"1"
