"""Azurite and our imitation of Google Cloud Storage behave as obstore and our store require."""

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
"""One request per call: with obstore's own retries, a create whose response was lost is refused."""


def azure_store(container: AzureContainer) -> AzureStore:
    options = container.client_options
    return AzureStore(container.name, config=container.config, client_options=options, **ONCE)


def gcs_store(bucket: GcsBucket) -> GCSStore:
    options = bucket.client_options
    return GCSStore(bucket.name, config=bucket.config, client_options=options, **ONCE)


@dataclass(frozen=True)
class Subject:
    """A store, the port of its server, its page size, and a function to open it at another URL.

    `at` takes the URL and `client_options`.
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
    """Return whether this put created the object."""
    try:
        store.put(key, data, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return False
    return True


def test_one_of_eight_concurrent_creates_succeeds(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(10):
            key = f"race/{round_}"
            made = list(pool.map(lambda me, key=key: create(store, key, bytes([me])), range(8)))
            assert made.count(True) == 1
            assert bytes(store.get(key).bytes()) == bytes([made.index(True)])


def test_no_conditional_update_is_lost(store: Store) -> None:
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
    """The version that a put replaces: an etag on Azure, a generation on GCS, where obstore does
    not accept None.
    """
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


def test_conditional_put_over_a_replaced_or_deleted_object_is_refused(store: Store) -> None:
    store.put("k", b"1", use_multipart=False)
    old = version_of(store.head("k"))
    store.put("k", b"2", use_multipart=False)
    with pytest.raises(PreconditionError):
        store.put("k", b"3", mode=old, use_multipart=False)
    now = version_of(store.head("k"))
    store.delete("k")
    with pytest.raises(PreconditionError):
        store.put("k", b"4", mode=now, use_multipart=False)


def test_copy_replaces_nothing_and_keeps_the_metadata(store: Store) -> None:
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
def test_listing_is_sorted_over_several_pages(subject: Subject) -> None:
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


def test_metadata_is_returned_unchanged(store: Store) -> None:
    given = {"crc": "12ab", "base_offset": "7", "Content-Type": "text/plain"}
    put = store.put("k", b"data", attributes=given, use_multipart=False)
    found = store.get("k", options={"head": True})
    assert dict(found.attributes).items() >= given.items()
    assert found.meta["size"] == 4
    assert found.meta["e_tag"] == put["e_tag"]
    age = datetime.now(UTC) - found.meta["last_modified"]  # noqa: TID251 - the server's own clock
    assert abs(age.total_seconds()) < 60


def test_range_belongs_to_the_requested_version(store: Store) -> None:
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


def test_multipart_upload_is_complete(store: Store) -> None:
    data = os.urandom(20 * 1024 * 1024)
    store.put("large", io.BytesIO(data), attributes={"my_key": "v"}, chunk_size=6 * 1024 * 1024)
    found = store.get("large")
    assert bytes(found.bytes()) == data
    assert found.attributes["my_key"] == "v"
    part = store.get_range("large", start=len(data) - 5, end=len(data))
    assert bytes(part) == data[-5:]


def test_missing_object_is_not_found(store: Store) -> None:
    for ask in (store.get, store.head, store.delete):
        with pytest.raises(FileNotFoundError):
            ask("absent")
    assert list(store.list("absent")) == []


def test_refusal_is_reported_and_the_next_request_succeeds(
    subject: Subject, proxy: S3Proxy
) -> None:
    store = subject.at(proxy.url)
    proxy.misbehave(first(2, answer(503, "SlowDown"), method="PUT"))
    for _ in range(2):
        with pytest.raises(GenericError, match="503"):
            store.put("k", b"1", use_multipart=False)
    store.put("k", b"2", use_multipart=False)
    assert [seen.status for seen in proxy.seen][:2] == [503, 503]


def test_request_with_a_lost_answer_takes_effect(subject: Subject, proxy: S3Proxy) -> None:
    store = subject.at(proxy.url)
    proxy.misbehave(first(1, lose_the_answer, method="PUT"))
    with pytest.raises(GenericError):
        store.put("k", b"mine", mode="create", use_multipart=False)
    assert not create(store, "k", b"again")
    assert bytes(store.get("k").bytes()) == b"mine"


def test_truncated_body_is_an_error(subject: Subject, proxy: S3Proxy) -> None:
    store = subject.at(proxy.url)
    store.put("k", bytes(100_000), use_multipart=False)
    # Every answer is cut, because obstore may send a second request for the rest of the body.
    proxy.misbehave(always(cut_answer))
    with pytest.raises((BaseError, OSError)):
        store.get("k").bytes()
    proxy.heal()
    assert len(store.get("k").bytes()) == 100_000


def test_hung_server_is_given_up(subject: Subject, proxy: S3Proxy) -> None:
    store = subject.at(proxy.url, timeout="1s")
    proxy.misbehave(first(1, hang))
    with pytest.raises(GenericError, match=r"(?i)timeout|timed out"):
        store.head("k")
    proxy.misbehave(first(1, late(0.2), method="PUT"))
    store.put("k", b"late", use_multipart=False)
    assert bytes(store.get("k").bytes()) == b"late"


@pytest.mark.integration
def test_azurite_over_https_is_trusted_only_by_its_authority(
    azure_container_tls: AzureContainer,
) -> None:
    assert azure_container_tls.server.endpoint_url.startswith("https://")
    assert create(azure_store(azure_container_tls), "k", b"")
    config = azure_container_tls.config
    distrustful = AzureStore(azure_container_tls.name, config=config, **ONCE)
    with pytest.raises(GenericError, match=r"(?i)certificate|connect"):
        distrustful.head("k")


@pytest.mark.integration
def test_killed_azurite_restarts_empty(own_azurite_server: AzuriteFactory) -> None:
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


def test_gcs_works_over_https(tls_identity: TlsIdentity) -> None:
    with GcsServer(tls_identity.certificate) as server:
        bucket = new_gcs_bucket(server, tls_identity.authority)
        assert create(gcs_store(bucket), "k", b"")
        distrustful = GCSStore(bucket.name, config=bucket.config, **ONCE)
        with pytest.raises(GenericError, match=r"(?i)certificate|connect"):
            distrustful.head("k")


def test_gcs_requests_have_the_recorded_form(gcs_bucket: GcsBucket) -> None:
    """The imitation relies on the form of these requests: a new obstore may send others."""
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


def test_gcs_generations_only_increase(gcs_bucket: GcsBucket) -> None:
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


def test_abandoned_upload_to_gcs_leaves_nothing(gcs_bucket: GcsBucket) -> None:
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
def test_gcs_refuses_unsupported_requests(
    gcs_bucket: GcsBucket, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """The imitation refuses unknown requests instead of ignoring parts of them."""
    server = gcs_bucket.server
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    given = {"Authorization": f"Bearer {server.token}", **headers}
    connection.request(method, f"/{gcs_bucket.name}{path}", body=b"data", headers=given)
    assert connection.getresponse().status == status
    connection.close()


def test_stopped_gcs_server_answers_nothing() -> None:
    with GcsServer() as server:
        store = gcs_store(new_gcs_bucket(server))
        assert create(store, "k", b"")
    # The connection is refused, or one that was open has ended.
    with pytest.raises(GenericError, match="error sending request"):
        store.head("k")
