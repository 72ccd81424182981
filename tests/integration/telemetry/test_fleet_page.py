"""A running sidecar's page, and the page of `sidetier fleet serve` as a process, in Chromium."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from playwright.sync_api import Page, expect

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.ports import free_port
from sidetier.cli.main import run
from sidetier.segments.keys import ArchiveLayout
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import ArchiveStore, file_store
from tests.harness.browser import Watched, running_browser
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.serve_process import serve_process
from tests.harness.sidecar import Sidecar, beside
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WAIT_MS = 60_000.0


@contextmanager
def fleet_page(*addresses: str) -> Iterator[str]:
    """Run `sidetier fleet serve` until the block ends; yields the URL of the page."""
    named = [f"--sidecar={address}" for address in addresses]
    arguments = ["fleet", "serve", "--listen", "127.0.0.1:0", *named]
    with subprocess.Popen(
        [sys.executable, "-m", "sidetier.cli", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().split()[-1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@contextmanager
def endpoint_page(
    root: Path, cluster: KraftCluster, store: ArchiveStore, topic: str
) -> Iterator[str]:
    """Run `sidetier serve --live` with a client at the end; yields the URL of the page."""
    port = free_port()
    root.mkdir()
    live = ("--live", cluster.bootstrap_servers, "--metrics-port", str(port))
    with serve_process(root, *live, store=store, layout=ArchiveLayout("test", 5)) as endpoint:
        consumer = endpoint.member("page")
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            assert len(consumer.consume(200, WAIT_MS / 1000)) == 200
            yield f"http://127.0.0.1:{port}"
        finally:
            consumer.close()


def check_sidecar_page(page: Page, topic: str, end: int) -> None:
    expect(page.locator("#rows > tr")).to_have_count(1, timeout=WAIT_MS)
    assert page.locator("#rows .state").inner_text() == "archived"
    text = page.locator("#rows > tr").inner_text()
    assert f"{topic}-0" in text
    assert f"archived up to {end:,}" in text
    parts = page.locator("#rows .bar").get_attribute("aria-label")
    assert parts is not None
    assert parts.startswith(f"0 to {end:,}: on the store and the broker")


def check_fleet_page(page: Page) -> None:
    expect(page.locator("#ready")).to_have_text("✕ 1 of 2 ready", timeout=WAIT_MS)
    assert page.locator("#sidecars .state").all_text_contents() == ["unreachable", "ready"]
    assert page.locator("#rows > tr > th > small").inner_text() == "broker 1"
    assert "Connection refused" in page.locator("#problems").inner_text()


def check_endpoint_page(page: Page, bootstrap: str, topic: str) -> None:
    expect(page.locator("#ends > tr")).to_have_count(1, timeout=WAIT_MS)
    assert page.locator("#ready").inner_text() == "✓ Ready"
    assert page.locator("#problem-list > li").all_inner_texts() == []
    assert page.locator("#stores .state").all_inner_texts() == ["listed"]
    assert page.locator("#brokers .state").all_inner_texts() == ["no failure"]
    assert page.locator("#brokers td").nth(1).inner_text() == bootstrap
    shown = page.locator("#ends > tr").inner_text().split("\t")
    assert shown == [f"{topic}-0", "read_committed", "1", "200", "200", "0"]
    assert page.locator("#totals > div").count() == 7


def test_pages_of_a_running_sidecar_and_of_its_fleet(
    kraft43: KraftCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = kraft43.bootstrap_servers
    create_topic(bootstrap, topic, configs=small_segments())
    Ledger().produce(bootstrap, topic, 200)
    end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
    store = file_store(tmp_path / "store")
    with (
        Sidecar(tmp_path / "sidecar", beside(kraft43, store, topics=[topic]), store) as sidecar,
        running_browser() as browser,
    ):
        wait_until_stored(store.objects, topic, 0, end)
        address = sidecar.url.removeprefix("http://")
        fleet = ["fleet", "status", "--sidecar", address]
        wait_until(lambda: run(fleet) == 0, 60, "the sidecar to settle", every=1)
        page = browser.new_page()
        watched = Watched(page)
        page.goto(sidecar.url)
        check_sidecar_page(page, topic, end)
        assert watched.messages == []
        with fleet_page(address, "127.0.0.1:1") as url:
            page.goto(url)
            check_fleet_page(page)
            assert all(url_.startswith((url, sidecar.url)) for url_ in watched.urls)
            assert watched.messages == []
            page.goto("about:blank")  # else the page asks this server after its end
        with endpoint_page(tmp_path / "serve", kraft43, store, topic) as url:
            page.goto(url)
            check_endpoint_page(page, bootstrap, topic)
            assert watched.messages == []
            page.goto("about:blank")
        # The name of the cluster is wrong: another archive of the same Kafka cluster begins.
        wrong = beside(kraft43, store, topics=[topic]) | {"cluster": {"name": "tset"}}
        with Sidecar(tmp_path / "wrong", wrong, store) as other:
            other.wait_until_ready()
            [second] = other.seen("archive.second")
            assert (
                "another archive of this Kafka cluster, 'test', beside 'tset'" in second["message"]
            )
            assert "runs on this host" in other.seen("daemon.second_sidecar")[0]["message"]
            assert run(["status", "--sidecar", other.url]) == 0
            shown = capsys.readouterr().out
            assert second["message"] in shown
            assert "another sidecar of broker 1 of Kafka cluster" in shown
            with fleet_page(address, other.url.removeprefix("http://")) as url:
                page.goto(url)
                expect(page.locator("#totals > div")).to_have_count(2, timeout=WAIT_MS)
                assert page.locator("#totals dt").all_text_contents() == [
                    "test: only on the brokers",
                    "tset: only on the brokers",
                ]
                names = {f"{name} · broker 1" for name in ("test", "tset")}
                assert set(page.locator("#rows > tr > th > small").all_text_contents()) == names
                assert second["message"] in page.locator("#problems").inner_text()
                assert watched.messages == []
        sidecar.stop()
