"""Effects of the store's troubles on a single request."""

import http.client
import random
import threading
from collections.abc import Iterator

import pytest

from sidetier.brokers.ports import HOST
from tests.end_to_end.chaos.troubles import mend, rules, trouble
from tests.harness.faulty_s3 import FaultyS3
from tests.harness.s3_proxy import Rule, S3Proxy, always, drawn, late
from tests.harness.waiting import wait_until


@pytest.fixture
def store() -> Iterator[FaultyS3]:
    with FaultyS3() as running:
        yield running


@pytest.fixture
def proxy(store: FaultyS3) -> Iterator[S3Proxy]:
    with S3Proxy(int(store.url.rpartition(":")[2])) as running:
        yield running


def put(proxy: S3Proxy, key: str, timeout: float = 10) -> int | None:
    """The status of a write; None without an answer."""
    connection = http.client.HTTPConnection(
        HOST, int(proxy.url.rpartition(":")[2]), timeout=timeout
    )
    try:
        connection.request("PUT", f"/bucket/{key}", b"body")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def statuses(proxy: S3Proxy, rule: Rule, count: int = 40) -> set[int | None]:
    proxy.misbehave(rule)
    return {put(proxy, f"key-{number}") for number in range(count)}


@pytest.mark.parametrize(
    ("trouble", "seen"),
    [
        ("denied", {403}),
        ("error", {500}),
        ("slow-down", {503, 200}),
        ("cut", {None, 200}),
        ("unanswered", {None, 200}),
    ],
)
def test_each_trouble_has_its_documented_effect(
    proxy: S3Proxy, trouble: str, seen: set[int | None]
) -> None:
    assert statuses(proxy, rules(random.Random(1))[trouble]) == seen


def test_unanswered_write_takes_effect_and_cut_write_does_not(
    proxy: S3Proxy, store: FaultyS3
) -> None:
    troubles = rules(random.Random(1))
    statuses(proxy, troubles["unanswered"])
    assert len(store.objects) == 40
    store.objects.clear()
    statuses(proxy, troubles["cut"])
    assert 0 < len(store.objects) < 40


def test_late_write_takes_effect_although_its_sender_has_given_up(
    proxy: S3Proxy, store: FaultyS3
) -> None:
    proxy.misbehave(always(late(30)))
    assert put(proxy, "late", timeout=0.2) is None
    assert store.objects == {}
    proxy.heal()
    wait_until(lambda: store.objects == {"late": b"body"}, 30, "the late write")


def test_unavailable_store_accepts_nothing_until_it_is_restored(
    proxy: S3Proxy, store: FaultyS3
) -> None:
    port = proxy.upstream
    trouble(proxy, "away", random.Random(1))
    assert put(proxy, "key") is None
    assert store.objects == {}
    mend(proxy, port)
    assert put(proxy, "key") == 200


def test_late_request_is_answered_if_its_sender_waits(proxy: S3Proxy) -> None:
    proxy.misbehave(always(late(0.05)))
    assert put(proxy, "patient") == 200


def test_random_share_of_requests_is_thread_safe() -> None:
    rule = drawn(random.Random(3), 0.5, [late(1), late(2)])
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.extend(rule("PUT", "k") is None for _ in range(250)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 400 < sum(found) < 600
