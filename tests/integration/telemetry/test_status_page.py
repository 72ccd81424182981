"""The status page in a real Chromium, served by the HTTP server of `sidetier run`."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application, endpoint_status, partition_page
from sidetier.telemetry.partition_page import page_of
from sidetier.telemetry.status import Condition, HeldError, StatusSnapshot
from tests.harness.browser import Watched, running_browser
from tests.harness.daemons import Site
from tests.harness.intercepted_store import SlowStore
from tests.harness.log_dir import LogDir
from tests.harness.status_samples import (
    ARCHIVED,
    GAP,
    HALTED,
    HELD,
    NEAR_DELETION,
    PROBLEMS,
    UPLOADING,
    many,
    snapshot_of,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RUNBOOK = "https://git.example.com/sidetier/docs/runbook"
HOSTILE = (
    "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
    "</td></table>&quot;'\u202e"
)
TO_DO = "What to do: SidetierServe"
GAP_TEXT = "1 Fetch since the start for records that the broker has deleted and the archive lacks"
WAIT_MS = 60_000.0
"""For pages on a loaded machine. A page that is right does not wait for it."""

expect.set_options(timeout=WAIT_MS)


class Status:
    def __init__(self) -> None:
        self.now = snapshot_of(*PROBLEMS, ARCHIVED)

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        return self.now


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture
def status() -> Status:
    return Status()


@pytest.fixture
def server(status: Status) -> Iterator[HttpServer]:
    application = Application(
        create_registry(),
        status,
        pages=lambda query: partition_page(page_of(status.now, query), RUNBOOK),
    )
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(WAIT_MS)
    yield page
    page.close()


@pytest.fixture
def watched(page: Page, server: HttpServer) -> Watched:
    """The page, opened and loaded."""
    watched = Watched(page)
    page.goto(server.url)
    expect(page.locator("#rows > tr")).not_to_have_count(0)
    return watched


def names(page: Page) -> list[str]:
    return page.locator("#rows > tr > th > button").all_text_contents()


def refresh(page: Page) -> None:
    """Refresh now, as the page does every 5 s."""
    page.evaluate("refresh()")


def row(page: Page, name: str) -> str:
    return page.locator("#rows > tr", has_text=name).inner_text()


def test_one_look_shows_the_state_with_the_worst_partition_first(
    page: Page, watched: Watched, server: HttpServer
) -> None:
    assert names(page) == [
        "invoices-0",
        "clicks-11",
        "payments-4",
        "audit-2",
        "orders-1",
        "orders-0",
    ]
    expect(page.locator("#cluster")).to_have_text("prod-a · broker 3")
    expect(page.locator("#ready")).to_have_text("✓ Ready")
    assert "✓ store reachable" in page.locator("#conditions").inner_text()
    assert "Sidetier 0.1.0, up " in page.locator("#about").inner_text()
    assert "topic id A, the broker B" in row(page, "invoices-0")
    assert "in 4 min" in row(page, "clicks-11")
    assert "403 AccessDenied" in row(page, "payments-4")
    assert "40,000 records were deleted before they were archived" in row(page, "audit-2")
    text = "uploading segment 1,000,000: 610 MB of 1.0 GB at 48 MB/s, 8 s left"
    assert text in row(page, "orders-1")
    assert "last upload" not in row(page, "orders-1")
    link = page.locator("#rows > tr", has_text="audit-2").locator("a")
    assert link.get_attribute("href") == f"{RUNBOOK}/SidetierGapFound.md"
    assert page.locator("#states button").all_text_contents() == [
        "1 halted",
        "1 near deletion",
        "1 held",
        "0 quarantining",
        "1 gap",
        "0 starting",
        "0 waiting",
        "1 uploading",
        "1 archived",
    ]
    assert watched.messages == []
    assert {urlsplit(url).netloc for url in watched.urls} == {urlsplit(server.url).netloc}


def test_bar_shows_the_whole_log(page: Page, watched: Watched) -> None:
    bar = page.locator("#rows > tr", has_text="audit-2").locator(".bar")
    assert bar.get_attribute("aria-label") == (
        "0 to 100,000: deleted everywhere; 100,000 to 300,000: on the store only; "
        "300,000 to 340,000: gap: deleted before it was archived; "
        "340,000 to 600,000: on the store only; "
        "600,000 to 1,000,000: on the store and the broker; "
        "1,000,000 to 1,010,000: not archived, in tail packs and on the broker; "
        "1,010,000 to 1,012,400: on the broker only"
    )
    assert bar.locator("xpath=following-sibling::small").text_content() == (
        "archived up to 1,000,000, safe up to 1,010,000 (waiting for 1 min), log end 1,012,400"
    )
    widths: list[float] = bar.locator(".part").evaluate_all(
        "parts => parts.map(part => part.getBoundingClientRect().width)"
    )
    assert len(widths) == 7
    assert min(widths) >= 3  # 0.2 % of the log is still visible
    assert widths[4] > widths[1] > widths[2]
    assert watched.messages == []


def test_filters_by_topic_and_state_are_kept_in_the_address(page: Page, watched: Watched) -> None:
    page.fill("#topic", "ord")
    expect(page.locator("#rows > tr")).to_have_count(2)
    page.get_by_role("button", name="1 uploading").click()
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert names(page) == ["orders-1"]
    page.reload()
    expect(page.locator("#rows > tr")).to_have_count(1)
    assert page.input_value("#topic") == "ord"
    page.fill("#topic", "no-such-topic")
    expect(page.locator("#none")).to_have_text("No partition matches the filter.")
    assert watched.messages == []


def test_keyboard_alone_filters_sorts_and_opens_details(page: Page, watched: Watched) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    page.keyboard.type("orders")
    expect(page.locator("#rows > tr")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#rows > tr")).to_have_count(6)
    header = page.get_by_role("button", name="Partition", exact=True)
    header.focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[data-sort=name]")).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("#rows > tr > th > button").first).to_have_text("audit-2")
    first = page.locator("#rows > tr > th > button").first
    first.focus()
    assert first.evaluate("button => getComputedStyle(button).outlineStyle") == "solid"
    page.keyboard.press("Space")
    expect(first).to_have_attribute("aria-expanded", "true")
    assert "leader epoch 7" in page.locator("tr.details").inner_text()
    assert watched.messages == []


def test_refresh_keeps_focus_scroll_filter_and_details(
    page: Page, watched: Watched, status: Status
) -> None:
    status.now = snapshot_of(*PROBLEMS, *many(90))
    refresh(page)
    expect(page.locator("#rows > tr")).to_have_count(95)
    button = page.get_by_role("button", name="events-0001-7", exact=True)
    button.click()
    page.evaluate("window.scrollTo(0, 900)")
    scrolled: float = page.evaluate("window.scrollY")
    assert scrolled > 0
    status.now = snapshot_of(replace(GAP, topic="zeta"), *PROBLEMS, *many(90))
    refresh(page)
    expect(page.locator("#rows > tr")).to_have_count(97)  # one more, and the details
    assert page.evaluate("document.activeElement.textContent") == "events-0001-7"
    assert page.locator("tr.details").count() == 1
    assert abs(page.evaluate("window.scrollY") - scrolled) < 200  # the browser may anchor a row
    assert watched.messages == []


def test_page_refreshes_itself_and_shows_problems(
    page: Page, watched: Watched, status: Status
) -> None:
    status.now = replace(
        snapshot_of(ARCHIVED),
        conditions=(Condition("store reachable", holds=False, reason="403 for s3://bucket"),),
        held_errors=(HeldError("partition orders-3", "KeyError: 'x'", 4),),
        log_dir_problems=("/data/1: Input/output error",),
    )
    expect(page.locator("#ready")).to_have_text("✕ Not ready")  # without `refresh`
    text = page.locator("#problems").inner_text()
    assert "store reachable: 403 for s3://bucket What to do: SidetierStoreUnreachable" in text
    assert "partition orders-3: KeyError: 'x' (4 times in a row)" in text
    assert "/data/1: Input/output error What to do: SidetierLogDirProblem" in text
    assert page.title().startswith("NOT READY")
    assert watched.messages == []


def test_page_is_stale_while_the_sidecar_does_not_answer(
    page: Page, watched: Watched, server: HttpServer, status: Status
) -> None:
    port = server.port
    server.stop()
    refresh(page)
    expect(page.locator("#stale")).to_contain_text("the server does not answer")
    assert page.locator("#stale").inner_text().startswith("Stale since ")
    assert names(page)  # the last status stays visible
    again = HttpServer(
        "127.0.0.1",
        port,
        Application(create_registry(), status),
    )
    again.start()
    try:
        refresh(page)
        expect(page.locator("#stale")).to_be_hidden()
    finally:
        again.stop()
    assert all("ERR_CONNECTION" in message for message in watched.messages)


def test_hostile_texts_are_shown_as_text(page: Page, watched: Watched, status: Status) -> None:
    hostile = replace(
        HELD, topic=HOSTILE, waiting_for=HOSTILE, last_error=f"error {HOSTILE}", partition=1
    )
    status.now = replace(
        snapshot_of(hostile, replace(hostile, partition=2)),
        cluster=HOSTILE,
        conditions=(Condition(HOSTILE, holds=False, reason=HOSTILE),),
        held_errors=(HeldError(HOSTILE, HOSTILE, 4),),
        log_dir_problems=(HOSTILE,),
        death=HOSTILE,
        alive=False,
    )
    refresh(page)
    expect(page.locator("#rows > tr")).to_have_count(2)
    button = page.locator("#rows > tr > th > button").first
    assert button.text_content() == f"{HOSTILE}-1"
    button.click()
    assert HOSTILE in (page.locator("tr.details").text_content() or "")
    assert HOSTILE in (page.locator("#problem-list").text_content() or "")
    assert page.locator("body img, body script:not([src])").count() == 0
    assert page.title() != "hacked"
    assert watched.messages == []


def test_content_security_policy_stops_inline_scripts(page: Page, watched: Watched) -> None:
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', "
        "'<img src=x onerror=\"document.title=&quot;hacked&quot;\">')"
    )
    expect(page.locator("body > img")).to_have_count(1)
    expect(page.locator("body > img")).to_have_js_property("complete", value=True)
    assert page.title() != "hacked"
    assert any("Content Security Policy" in message for message in watched.messages)


def test_ten_thousand_partitions_have_pages(page: Page, watched: Watched, status: Status) -> None:
    status.now = snapshot_of(*PROBLEMS, *many(10_000))
    refresh(page)
    expect(page.locator("#range")).to_have_text("1 to 100 of 10,005")
    expect(page.locator("#rows > tr")).to_have_count(100)
    drawing: float = page.evaluate(
        "(() => { const t = performance.now(); render(); "
        "document.body.getBoundingClientRect(); return performance.now() - t; })()"
    )
    assert drawing < 1000  # 10 ms on an idle machine
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#range")).to_have_text("101 to 200 of 10,005")
    page.get_by_role("button", name="Previous").click()
    expect(page.locator("#range")).to_have_text("1 to 100 of 10,005")
    assert names(page)[0] == "invoices-0"
    page.fill("#topic", "events-0199")
    expect(page.locator("#rows > tr")).to_have_count(50)
    assert watched.messages == []


def test_progress_of_an_upload_to_a_slow_store(page: Page, tmp_path: Path) -> None:
    log_dir, slow = LogDir(tmp_path), SlowStore(FakeStorage())
    log = log_dir.create("orders", 0)
    log.closed_segment(20_000, batch=500, size=100)
    log_dir.checkpoint_high_watermarks()
    size = len(log.written[0])
    with Site([log_dir], slow).running() as daemon:
        board = daemon.daemon.status
        application = Application(
            create_registry(), board, pages=lambda query: partition_page(board.page(query))
        )
        server = HttpServer("127.0.0.1", 0, application)
        server.start()
        try:
            watched = Watched(page)
            page.goto(server.url)
            bar = page.locator("#rows .now progress")
            expect(bar).to_have_js_property("value", size // 2)
            expect(bar).to_have_js_property("max", size)
            text = bar.get_attribute("aria-label") or ""
            assert re.fullmatch(
                r"uploading segment 0: 1\.\d MB of 2\.\d MB at [\d.]+ [kM]?B/s, .+ left", text
            ), text
            assert text in row(page, "orders-0")
            assert watched.messages == []
            slow.goes_on.release()
            refresh(page)
            expect(page.locator("#rows .state")).to_have_text("archived")  # without `refresh`
            assert bar.count() == 0
            # Two refreshes 5 s apart: the rate counts what was sent between them.
            total = page.locator("#totals > div", has_text="Uploading")
            expect(total).to_contain_text(re.compile(r"[\d.]+ [kM]?B/s in the last minute"))
            assert watched.messages == []
        finally:
            slow.goes_on.release()
            server.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark_mode(
    browser: Browser, server: HttpServer, scheme: str
) -> None:
    page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    try:
        watched = Watched(page)
        page.goto(server.url)
        expect(page.locator("#rows > tr")).to_have_count(6)
        ratios: dict[str, float] = page.evaluate(CONTRAST)
        assert {text for text, ratio in ratios.items() if ratio < 4.5} == set()
        background: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(18, 23, 27)") == (scheme == "dark")
        assert watched.messages == []
    finally:
        page.close()


def test_page_asks_for_the_bearer_token(browser: Browser, status: Status) -> None:
    application = Application(create_registry(), status, lambda: "s3cret")
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    page = browser.new_page()
    try:
        page.goto(server.url)
        page.fill("#token", "wrong", timeout=WAIT_MS)
        page.keyboard.press("Enter")
        expect(page.locator("#stale")).to_contain_text("asks for a bearer token")
        page.fill("#token", "s3cret")
        page.keyboard.press("Enter")
        expect(page.locator("#rows > tr")).to_have_count(6)
        expect(page.locator("#login")).to_be_hidden()
        assert "s3cret" not in page.url
    finally:
        page.close()
        server.stop()


def test_states_are_told_by_text_too(page: Page, watched: Watched) -> None:
    """Colours alone would not do for every operator."""
    states = page.locator("#rows .state").all_text_contents()
    assert states == ["halted", "near deletion", "held", "gap", "uploading", "archived"]
    assert [HALTED.topic, NEAR_DELETION.topic, UPLOADING.topic] == ["invoices", "clicks", "orders"]
    assert watched.messages == []


class Endpoint:
    """What a Kafka endpoint shows; each answer has more requests and bytes than the last one."""

    def __init__(self) -> None:
        self.snapshot = StatusSnapshot(
            "prod-a", started_ms=1, conditions=(Condition("accepts connections", holds=True),)
        )
        self.stores = [
            {"url": "s3://bucket/kafka", "topics": 12, "age_seconds": 9, "problem": None}
        ]
        self.brokers = [
            {"id": 1, "address": "b1:9092", "led_partitions": 40, "problem": None},
            {"id": 2, "address": "b2:9092", "led_partitions": 38, "problem": None},
        ]
        self.live: dict[str, Any] = {"leaderless_partitions": 0, "gaps": 0, "lag_records": 7}
        self.answers = 0

    def status(self) -> dict[str, Any]:
        self.answers += 1
        followed = {"topic": "orders", "isolation_level": "read_committed", "leader": 1}
        return {
            "address": "0.0.0.0:9092",
            "advertised": "log.example:9092",
            "connections": 31,
            "max_connections": 1000,
            "refused_connections": 0,
            "requests": 5000 * self.answers,
            "sent_bytes": 0,
            "record_bytes": 9_000_000 * self.answers,
            "topics": 14,
            "partitions": 78,
            "stores": self.stores,
            "live": {
                "cluster_id": "kafka-id",
                "archive_is_checked": True,
                "problem": None,
                "topics": 14,
                "topics_age_seconds": 4.2,
                "brokers": self.brokers,
                "record_bytes": 8_000_000 * self.answers,
                "fetched_bytes": 2_000_000,
                "followed_partitions": 60,
                "followed": [
                    {**followed, "partition": 3, "position": 993, "end": 1000, "lag_records": 7},
                    {**followed, "partition": 4, "position": 500, "end": 500, "lag_records": 0},
                ],
                **self.live,
            },
        }


def test_page_of_an_endpoint(page: Page) -> None:
    endpoint = Endpoint()
    application = Application(
        create_registry(),
        Status(),
        endpoint=lambda: endpoint_status(endpoint.snapshot, endpoint.status(), RUNBOOK),
    )
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    try:
        watched = Watched(page)
        page.goto(server.url)
        expect(page.locator("#ready")).to_have_text("✓ Ready")
        expect(page.locator("#cluster")).to_have_text("prod-a · endpoint log.example:9092")
        assert "listens at 0.0.0.0:9092" in page.locator("#about").inner_text()
        expect(page.locator("#problems")).to_be_hidden()
        totals = dict(
            zip(
                page.locator("#totals dt").all_inner_texts(),
                page.locator("#totals dd").all_inner_texts(),
                strict=True,
            )
        )
        assert totals["Open connections"].splitlines() == ["31", "of 1,000"]
        assert totals["Topics"].splitlines() == ["14", "78 partitions"]
        assert totals["Records from the stores"].startswith("1.0 MB")
        assert totals["Records from the brokers"].startswith("8.0 MB")
        assert totals["Largest lag"].splitlines() == ["7 records", "of 60 followed partitions"]
        assert page.locator("#stores > tr").all_inner_texts() == [
            "s3://bucket/kafka\tlisted\t12\t9 s\t"
        ]
        assert page.locator("#brokers .state").all_inner_texts() == ["no failure"] * 2
        assert page.locator("#ends > tr").first.inner_text().split("\t") == [
            "orders-3", "read_committed", "1", "993", "1,000", "7",
        ]  # fmt: skip
        ratios: dict[str, float] = page.evaluate(CONTRAST)
        assert {text for text, ratio in ratios.items() if ratio < 4.5} == set()
        passed = "Date.now() - samples[0].at > 1000"  # a rate needs a second
        wait_until(lambda: page.evaluate(passed), 60, "another second")
        refresh(page)
        requests = page.locator("#totals > div", has_text="Requests")
        expect(requests).to_contain_text(re.compile(r"[\d,]+/s in the last minute"))
        condition = Condition("accepts connections", holds=False, reason="too many are open")
        endpoint.snapshot = replace(endpoint.snapshot, conditions=(condition,))
        endpoint.stores[0]["problem"] = HOSTILE
        endpoint.brokers[1] |= {"problem": HOSTILE, "address": HOSTILE}
        endpoint.live |= {
            "leaderless_partitions": 38, "gaps": 1, "archive_is_checked": False,
            "topics_age_seconds": None,
        }  # fmt: skip
        refresh(page)
        expect(page.locator("#ready")).to_have_text("✕ Not ready")
        away = f"{TO_DO}LiveAway"
        assert page.locator("#problem-list > li").all_text_contents() == [
            f"accepts connections: too many are open {TO_DO}Refusing",
            f"the topics of s3://bucket/kafka cannot be listed: {HOSTILE} {TO_DO}Errors",
            f"no broker of the live cluster has answered yet {away}",
            f"broker 2 ({HOSTILE}) cannot be reached: {HOSTILE} {away}",
            f"38 partitions of the live cluster without a leader {away}",
            "it is not known yet whether the archive is the one of the live cluster ",
            f"{GAP_TEXT} {TO_DO}Gap",
        ]
        assert page.locator("#stores .state").inner_text() == "fails"
        assert page.locator("#brokers .state").all_inner_texts() == ["no failure", "unreachable"]
        assert page.locator("body img, body script:not([src])").count() == 0
        assert page.title() == "NOT READY · prod-a · endpoint log.example:9092 · Sidetier"
        assert watched.messages == []
    finally:
        server.stop()


CONTRAST = """
(() => {
  const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const ratios = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.tagName === "NOSCRIPT") continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const key = `${element.tagName} ${element.textContent.trim().slice(0, 30)}`;
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    ratios[key] = Math.min(ratio, ratios[key] ?? 99);
  }
  return ratios;
})()
"""
