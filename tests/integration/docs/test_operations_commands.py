"""Every command of the operations guide and the runbook, beside a real broker and sidecar."""

import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.objects.gaps import write_gap
from sidetier.brokers.ports import free_port
from sidetier.cli.main import run
from sidetier.cli.serve import http_server
from sidetier.config.model import HttpConfig
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.fake import FakeStorage
from sidetier.storage.settings import StorageEndpoint
from sidetier.telemetry.metrics import create_registry
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import file_store
from tests.harness.chart import run_helm
from tests.harness.kube_api import DRY_RUN, kube_api
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.made_archive import access_to
from tests.harness.markdown import ROOT, commands, text_of
from tests.harness.records import SeededRecord
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, produce

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PAGES = [
    Path("docs/operations.md"),
    *sorted(path.relative_to(ROOT) for path in (ROOT / "docs" / "runbook").glob("*.md")),
]


HELM_PAGES = [*PAGES, Path("README.md"), Path("helm/sidetier/README.md")]


def lines(program: str, pages: list[Path] = PAGES) -> list[str]:
    """Each distinct command line of this program, without the program's name."""
    found = (" ".join(words) for page in pages for words in commands(text_of(page), program))
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with a sidecar that has stored all closed segments."""

    cluster: KraftCluster
    sidecar: Sidecar
    topic: str

    def here(self, word: str) -> str:
        """A word of the guide, adapted to this test's addresses and names."""
        words = {
            "/etc/sidetier/sidetier.yaml": str(self.sidecar.config),
            "http://broker-3:9108": self.sidecar.url,
            "other-broker:9092": self.cluster.bootstrap_servers,
            "orders": self.topic,
            "1234567": "3",
        }
        return words.get(word, word)


@pytest.fixture(scope="module")
def site(kraft43: KraftCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    topic, bootstrap = "orders-of-the-guide", kraft43.bootstrap_servers
    create_topic(bootstrap, topic, partitions=4, configs=small_segments())
    produce(bootstrap, topic, [SeededRecord(b"customer-17", b"{}")], partition=3)
    Ledger().produce(bootstrap, topic, 100, partitions=(3,))
    directory = tmp_path_factory.mktemp("site")
    store = file_store(directory / "store")
    settings = beside(kraft43, store, topics=[topic])
    local = {"topics": [topic], "bytes": "1GiB"}  # nothing is beyond it
    settings = merged(settings, {"http": {"port": free_port()}, "retention": {"local": local}})
    with Sidecar(directory / "sidecar", settings, store) as sidecar:
        end = closed_end(kraft43.log_dirs(1)[0] / f"{topic}-3")
        wait_until_stored(store.objects, topic, 3, end)
        sidecar.wait_until_ready()
        gap = OffsetRange(Offset(1200), Offset(7200))  # of the command in the runbook
        tp, objects = TopicPartition(topic, 3), open_plain(StorageEndpoint(store.settings["url"]))
        write_gap(objects, ArchiveLayout("test", 5), tp, gap, BrokerId(1), LeaderEpoch(0))
        yield Site(kraft43, sidecar, topic)


def test_guide_contains_commands() -> None:
    assert len(lines("sidetier")) > 8
    assert lines("curl")
    assert lines("helm")


@pytest.mark.parametrize("line", lines("sidetier"))
def test_command_of_the_guide_succeeds(
    line: str, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    words = [site.here(word) for word in line.split()]
    if words[0] == "can-i-lose":
        words[1] = "1"
    code = run(words)
    out, err = capsys.readouterr()
    assert code in {0, 3}, err
    assert bool(out) == ("--value-contains" not in words)  # no record has that text
    assert not err
    if words[0] == "explain":
        assert (code, "archived in segment" in out) == (0, True)


@contextmanager
def endpoint_url() -> Iterator[str]:
    """Yield the URL of the metrics port of an endpoint over an empty store."""
    port, registry = free_port(), create_registry()
    with (
        serving(access_to(FakeStorage()), EndpointSettings(("127.0.0.1", 0)), registry) as endpoint,
        http_server(port, registry, endpoint, HttpConfig()),
    ):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("line", lines("curl"))
def test_page_of_the_guide_answers(line: str, site: Site) -> None:
    address = next(word for word in line.split() if word.startswith("localhost"))
    path = address.partition("/")[2].replace("orders", site.topic)
    with ExitStack() as stack:
        is_sidecar = path != "api/status"
        url = site.sidecar.url if is_sidecar else stack.enter_context(endpoint_url())
        answer = stack.enter_context(urllib.request.urlopen(f"{url}/{path}", timeout=60))  # noqa: S310 -- our own
        assert answer.status == 200
        assert answer.read()


WITHOUT_A_CLUSTER = {"install": DRY_RUN, "test": ["--help"]}


@pytest.mark.parametrize("line", lines("helm", HELM_PAGES))
def test_helm_accepts_the_commands_of_the_guide(line: str, tmp_path: Path) -> None:
    words = [str(ROOT / word) if word.startswith("helm/") else word for word in line.split()]
    words += WITHOUT_A_CLUSTER.get(words[0], [])
    with kube_api(tmp_path, {}) as kubeconfig:
        ran = run_helm(*words, kubeconfig=kubeconfig)
    assert ran.code == 0, ran.out + ran.err
    assert ran.out
