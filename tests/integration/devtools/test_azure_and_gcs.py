"""Azurite and our imitation of Google Cloud Storage do what obstore, and our store, rely on."""

import http.client
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore

from devtools.sandbox.azurite import ACCOUNT, AzuriteServer
from tests.harness.azure import AzureContainer, AzuriteFactory, config_at, new_container
from tests.harness.gcs_server import GcsBucket, GcsServer, new_gcs_bucket
from tests.harness.s3 import TlsIdentity
from tests.harness.s3_proxy import (
    S3Proxy,
    always,
    answer,
    cut_answer,
    first,
    hang,
    late,
    lose_the_answer,
)

Store = AzureStore | GCSStore

ONCE: Any = {"retry_config": {"max_retries": 0}}
"""One request per call: with obstore's own retries a lost answer to a create is a refused one."""


def azure_store(container: AzureContainer) -> AzureStore:
    options = container.client_options
    return AzureStore(container.name, config=container.config, client_options=options, **ONCE)


def gcs_store(bucket: GcsBucket) -> GCSStore:
    options = bucket.client_options
    return GCSStore(bucket.name, config=bucket.config, client_options=options, **ONCE)


@dataclass(frozen=True)
class Subject:
    """A store, the port of its server, the size of its pages, and how to open it at another url.

    `at` takes the url and `client_options`.
    """

    store: Store
    port: int
    page: int
    at: Callable[..., Store]


def azure_subject(container: AzureContainer) -> Subject:
    def at(url: str, **options: Any) -> AzureStore:  # noqa: ANN401 - obstore's options
        config = config_at(f"{url}/{ACCOUNT}")
        merged: Any = {**container.client_options, **options}
        return AzureStore(container.name, config=config, client_options=merged, **ONCE)

    return Subject(azure_store(container), container.server.port, 5000, at)


def gcs_subject(bucket: GcsBucket) -> Subject:
    def at(url: str, **options: Any) -> GCSStore:  # noqa: ANN401 - obstore's options
        config = bucket.config
        config["base_url"] = url
        merged: Any = {**bucket.client_options, **options}
        return GCSStore(bucket.name, config=config, client_options=merged, **ONCE)

    return Subject(gcs_store(bucket), bucket.server.port, 1000, at)


@pytest.fixture(params=["gcs", pytest.param("azure", marks=pytest.mark.integration)])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "azure":
        return azure_subject(request.getfixturevalue("azure_container"))
    return gcs_subject(request.getfixturevalue("gcs_bucket"))


@pytest.fixture
def store(subject: Subject) -> Store:
    return subject.store


@pytest.fixture
def proxy(subject: Subject) -> Iterator[S3Proxy]:
    with S3Proxy(subject.port) as proxy:
        yield proxy


def create(store: Store, key: str, data: bytes) -> bool:
    """Whether this put was the one that created the object."""
    try:
        store.put(key, data, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return False
    return True


def test_of_eight_creators_one_wins(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(10):
            key = f"race/{round_}"
            made = list(pool.map(lambda me, key=key: create(store, key, bytes([me])), range(8)))
            assert made.count(True) == 1
            assert bytes(store.get(key).bytes()) == bytes([made.index(True)])


def test_no_swap_is_lost(store: Store) -> None:
    store.put("count", b"0", mode="create", use_multipart=False)

    def count_up(_: int) -> None:
        while True:
            found = store.get("count")
            data = str(int(bytes(found.bytes())) + 1).encode()
            with suppress(PreconditionError):
                store.put("count", data, mode=version_of(found.meta), use_multipart=False)
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(40)))
    assert bytes(store.get("count").bytes()) == b"40"


def version_of(meta: Any) -> Any:  # noqa: ANN401 - obstore's types exist for type checkers only
    """What a put replaces: an etag on Azure, a generation on GCS; obstore takes no None there."""
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


def test_a_replaced_or_deleted_object_is_not_swapped(store: Store) -> None:
    store.put("k", b"1", use_multipart=False)
    old = version_of(store.head("k"))
    store.put("k", b"2", use_multipart=False)
    with pytest.raises(PreconditionError):
        store.put("k", b"3", mode=old, use_multipart=False)
    now = version_of(store.head("k"))
    store.delete("k")
    with pytest.raises(PreconditionError):
        store.put("k", b"4", mode=now, use_multipart=False)


def test_a_copy_replaces_nothing_and_takes_the_metadata_along(store: Store) -> None:
    store.put("a/b c", b"data", attributes={"my_key": "value"}, use_multipart=False)
    store.copy("a/b c", "a/copy", overwrite=False)
    copied = store.get("a/copy")
    assert bytes(copied.bytes()) == b"data"
    assert copied.attributes["my_key"] == "value"
    store.put("a/b c", b"later", use_multipart=False)
    with pytest.raises(AlreadyExistsError):
        store.copy("a/b c", "a/copy", overwrite=False)
    assert bytes(store.get("a/copy").bytes()) == b"data"
    with pytest.raises(FileNotFoundError):
        store.copy("a/absent", "a/new", overwrite=False)


@pytest.mark.timeout(240)
def test_a_listing_is_in_order_over_several_pages(subject: Subject) -> None:
    store = subject.store
    keys = [f"log/é/{number:05}" for number in range(subject.page + 3)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"", use_multipart=False), keys))
    store.put("log/other", b"", use_multipart=False)
    listed = [meta["path"] for page in store.list("log/é") for meta in page]
    assert listed == keys
    rest = [meta["path"] for page in store.list("log/é", offset=keys[-3]) for meta in page]
    assert [key for key in rest if key > keys[-3]] == keys[-2:]
    below = store.list_with_delimiter("log")
    assert below["common_prefixes"] == ["log/é"]
    assert [meta["path"] for meta in below["objects"]] == ["log/other"]


def test_metadata_comes_back(store: Store) -> None:
    given = {"crc": "12ab", "base_offset": "7", "Content-Type": "text/plain"}
    put = store.put("k", b"data", attributes=given, use_multipart=False)
    found = store.get("k", options={"head": True})
    assert dict(found.attributes).items() >= given.items()
    assert found.meta["size"] == 4
    assert found.meta["e_tag"] == put["e_tag"]
    age = datetime.now(UTC) - found.meta["last_modified"]  # noqa: TID251 - the server's own clock
    assert abs(age.total_seconds()) < 60


def test_a_range_is_of_the_version_that_was_asked_for(store: Store) -> None:
    etag = store.put("k", b"0123456789", use_multipart=False)["e_tag"]
    assert etag is not None
    found = store.get("k", options={"range": (2, 5), "if_match": etag})
    assert bytes(found.bytes()) == b"234"
    assert bytes(store.get("k", options={"range": {"offset": 7}}).bytes()) == b"789"
    # Azurite answers 206 with "bytes 10-9/10", which obstore refuses.
    with pytest.raises(GenericError, match=r"416|Wanted range starting at 10"):
        store.get("k", options={"range": (10, 12)})
    store.put("k", b"abcdefghij", use_multipart=False)
    with pytest.raises(PreconditionError):
        store.get("k", options={"range": (2, 5), "if_match": etag})


def test_an_upload_in_parts(store: Store) -> None:
    data = os.urandom(20 * 1024 * 1024)
    store.put("large", io.BytesIO(data), attributes={"my_key": "v"}, chunk_size=6 * 1024 * 1024)
    found = store.get("large")
    assert bytes(found.bytes()) == data
    assert found.attributes["my_key"] == "v"
    part = store.get_range("large", start=len(data) - 5, end=len(data))
    assert bytes(part) == data[-5:]


def test_what_is_absent(store: Store) -> None:
    for ask in (store.get, store.head, store.delete):
        with pytest.raises(FileNotFoundError):
            ask("absent")
    assert list(store.list("absent")) == []


def test_a_refusal_is_told_and_the_next_request_goes_through(
    subject: Subject, proxy: S3Proxy
) -> None:
    store = subject.at(proxy.url)
    proxy.misbehave(first(2, answer(503, "SlowDown"), method="PUT"))
    for _ in range(2):
        with pytest.raises(GenericError, match="503"):
            store.put("k", b"1", use_multipart=False)
    store.put("k", b"2", use_multipart=False)
    assert [seen.status for seen in proxy.seen][:2] == [503, 503]


def test_a_lost_answer_leaves_the_object(subject: Subject, proxy: S3Proxy) -> None:
    store = subject.at(proxy.url)
    proxy.misbehave(first(1, lose_the_answer, method="PUT"))
    with pytest.raises(GenericError):
        store.put("k", b"mine", mode="create", use_multipart=False)
    assert not create(store, "k", b"again")
    assert bytes(store.get("k").bytes()) == b"mine"


def test_a_body_that_is_cut_off_is_no_success(subject: Subject, proxy: S3Proxy) -> None:
    store = subject.at(proxy.url)
    store.put("k", bytes(100_000), use_multipart=False)
    # Always, since obstore may ask a second time, for the rest of the body.
    proxy.misbehave(always(cut_answer))
    with pytest.raises((BaseError, OSError)):
        store.get("k").bytes()
    proxy.heal()
    assert len(store.get("k").bytes()) == 100_000


def test_a_server_that_hangs_is_given_up(subject: Subject, proxy: S3Proxy) -> None:
    store = subject.at(proxy.url, timeout="1s")
    proxy.misbehave(first(1, hang))
    with pytest.raises(GenericError, match=r"(?i)timeout|timed out"):
        store.head("k")
    proxy.misbehave(first(1, late(0.2), method="PUT"))
    store.put("k", b"late", use_multipart=False)
    assert bytes(store.get("k").bytes()) == b"late"


@pytest.mark.integration
def test_azurite_over_https_is_trusted_by_its_authority_only(
    azure_container_tls: AzureContainer,
) -> None:
    assert azure_container_tls.server.endpoint_url.startswith("https://")
    assert create(azure_store(azure_container_tls), "k", b"")
    config = azure_container_tls.config
    distrustful = AzureStore(azure_container_tls.name, config=config, **ONCE)
    with pytest.raises(GenericError, match=r"(?i)certificate|connect"):
        distrustful.head("k")


@pytest.mark.integration
def test_a_killed_azurite_comes_back_empty(own_azurite_server: AzuriteFactory) -> None:
    server = own_azurite_server()
    store = azure_store(new_container(server))
    assert create(store, "k", b"")
    server.kill()
    with pytest.raises(GenericError, match=r"(?i)connect"):
        store.head("k")
    server.start()
    with pytest.raises(FileNotFoundError):
        store.head("k")
    assert create(azure_store(new_container(server)), "k", b"")


@pytest.mark.integration
def test_each_container_is_new(azurite_server: AzuriteServer) -> None:
    first_of_two, second = new_container(azurite_server), new_container(azurite_server)
    azure_store(first_of_two).put("k", b"", use_multipart=False)
    assert list(azure_store(second).list()) == []


def test_gcs_over_https(tls_identity: TlsIdentity) -> None:
    with GcsServer(tls_identity.certificate) as server:
        bucket = new_gcs_bucket(server, tls_identity.authority)
        assert create(gcs_store(bucket), "k", b"")
        distrustful = GCSStore(bucket.name, config=bucket.config, **ONCE)
        with pytest.raises(GenericError, match=r"(?i)certificate|connect"):
            distrustful.head("k")


def test_gcs_sends_what_was_recorded(gcs_bucket: GcsBucket) -> None:
    """The shapes of requests on which the imitation rests: a new obstore may send others."""
    store, seen = gcs_store(gcs_bucket), gcs_bucket.server.seen
    attributes = {"my-key": "v", "Storage-Class": "NEARLINE"}
    version = store.put("k", b"1", mode="create", attributes=attributes)["version"]
    sent = seen[-1].request.headers
    assert sent["x-goog-if-generation-match"] == "0"
    assert (sent["x-goog-meta-my-key"], sent["x-goog-storage-class"]) == ("v", "NEARLINE")
    assert dict(store.head("k").items()).get("version") == version
    store.put("k", b"2", mode=version_of(store.head("k")))
    assert seen[-1].request.headers["x-goog-if-generation-match"] == version
    store.copy("k", "k2", overwrite=False)
    copy = seen[-1].request.headers
    assert copy["x-goog-copy-source"].endswith("/k")
    assert copy["x-goog-if-generation-match"] == "0"
    list(store.list("a", offset="a/b"))
    listing = {"list-type": "2", "prefix": "a/", "start-after": "a/b"}
    assert seen[-1].request.query == listing


def test_gcs_generations_only_grow(gcs_bucket: GcsBucket) -> None:
    store = gcs_store(gcs_bucket)
    made = store.put("k", b"1", use_multipart=False)["version"]
    store.delete("k")
    again = store.put("k", b"1", use_multipart=False)["version"]
    assert made is not None
    assert again is not None
    assert int(again) > int(made)
    with pytest.raises(FileNotFoundError):
        store.get("k", options={"version": made})
    assert bytes(store.get("k", options={"version": again}).bytes()) == b"1"


def test_gcs_checks_tokens_and_buckets(gcs_bucket: GcsBucket) -> None:
    options = gcs_bucket.client_options
    url = gcs_bucket.server.url
    expired = GCSStore(
        gcs_bucket.name, base_url=url, bearer_token="expired", client_options=options, **ONCE
    )
    with pytest.raises(UnauthenticatedError, match="AuthenticationRequired"):
        expired.put("k", b"", use_multipart=False)
    anonymous = GCSStore(
        gcs_bucket.name, base_url=url, skip_signature=True, client_options=options, **ONCE
    )
    with pytest.raises(PermissionDeniedError, match="AccessDenied"):
        anonymous.get("k")
    nowhere = GCSStore("absent", config=gcs_bucket.config, client_options=options, **ONCE)
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        nowhere.put("k", b"", use_multipart=False)


def test_an_abandoned_upload_to_gcs_leaves_nothing(gcs_bucket: GcsBucket) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(12 * 1024 * 1024)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        gcs_store(gcs_bucket).put("k", pieces())
    assert gcs_bucket.server.objects(gcs_bucket.name) == {}
    assert gcs_bucket.server.uploads(gcs_bucket.name) == []


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("PUT", "/k", {"If-Match": '"etag"'}, 501),
        ("PUT", "/k", {"x-goog-encryption-key": "k"}, 501),
        ("GET", "/k?acl", {}, 501),
        ("POST", "/k?uploads", {"x-goog-if-generation-match": "0"}, 400),
        ("PUT", "/k", {"x-goog-hash": "crc32c=AAAAAA=="}, 400),
        ("PUT", "/k", {"x-goog-if-generation-match": "3"}, 412),
        ("DELETE", "/k?uploadId=none", {}, 404),
        ("PUT", "", {}, 409),
    ],
)
def test_what_gcs_refuses(
    gcs_bucket: GcsBucket, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """What the imitation does not know is refused, not overlooked."""
    server = gcs_bucket.server
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    given = {"Authorization": f"Bearer {server.token}", **headers}
    connection.request(method, f"/{gcs_bucket.name}{path}", body=b"data", headers=given)
    assert connection.getresponse().status == status
    connection.close()


def test_a_stopped_gcs_server_answers_nobody() -> None:
    with GcsServer() as server:
        store = gcs_store(new_gcs_bucket(server))
        assert create(store, "k", b"")
    with pytest.raises(GenericError, match=r"(?i)connect"):
        store.head("k")
