"""Stores at process start: unavailable, refused, of another cluster; and one of two stores."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sidetier.archive.objects.key_fingerprints import write_or_check_fingerprint
from sidetier.archive.objects.layout import other_archives, write_or_check_note
from sidetier.config.model import Config
from sidetier.segments.errors import (
    AccessDeniedError,
    ConfigurationError,
    MalformedObjectError,
    SidetierError,
    StoreUnavailableError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage import factory
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FULL, FakeStorage
from sidetier.storage.port import StorageCapabilities
from sidetier.storage.settings import StorageEndpoint
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.state import segment as segment_state
from sidetier.uploader.wiring import daemon
from tests.harness.daemons import LAYOUT, RunningDaemon, stored_logs, stored_next
from tests.harness.encryption import FIRST as KEY
from tests.harness.encryption import SECOND as OTHER_KEY
from tests.harness.encryption import encryption, settings
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.log_dir import CLUSTER_ID, LogDir, PartitionLog

FIRST, SECOND = "file:///first", "file:///second"
UNFENCED = StorageCapabilities(conditional_writes=False, checksum=FULL.checksum)


@pytest.fixture(autouse=True)
def _short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after 20 ms instead of one second."""
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 0.02)
    monkeypatch.setattr(segment_state, "_LONGEST_HOLD", 0.1)


@dataclass
class Process:
    """The daemon as the command wires it, over a log dir and two stores in memory: topics that
    match `second.*` go to the second store, all others to the first.
    """

    log_dir: LogDir
    stores: dict[str, FakeStorage]

    @property
    def first(self) -> FakeStorage:
        return self.stores[FIRST]

    @property
    def second(self) -> FakeStorage:
        return self.stores[SECOND]

    @contextmanager
    def running(self, encryption: dict[str, object] | None = None) -> Iterator[RunningDaemon]:
        """Run the daemon as the leader of every existing partition."""
        settings: dict[str, Any] = {
            "cluster": {"name": LAYOUT.cluster},
            "log_dirs": [str(self.log_dir)],
            "leadership": {"source": "static"},
            "storage": {
                "url": FIRST,
                "prefix_entropy_bits": LAYOUT.bits,
                "overrides": [{"topics": "second.*", "url": SECOND}],
                "retry": {"attempts": 1},
                "encryption": encryption,
            },
            "uploader": {"threads": 2, "pins": {"min_free_disk": "0"}, "shutdown_grace": 5},
        }
        config = Config.model_validate(settings)
        with (
            daemon(config, Metrics(CollectorRegistry())) as built,
            RunningDaemon(built) as started,
        ):
            yield started


@pytest.fixture
def process(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A process whose two stores answer and are empty."""
    stores = {FIRST: FakeStorage(), SECOND: FakeStorage()}

    def open_fake(endpoint: StorageEndpoint) -> FakeStorage:
        return stores[endpoint.url]

    monkeypatch.setitem(factory._OPENERS, "file", open_fake)
    return Process(log_dir, stores)


def holds(running: RunningDaemon, log: PartitionLog, segments: int) -> bool:
    status = running.status(log.tp)
    return status is not None and status.unstored_segments == segments


def test_outage_of_the_second_store_does_not_stop_the_first(
    process: Process, log: PartitionLog
) -> None:
    """It does not end the process either; segments for the second store are held until it is
    back.
    """
    other = process.log_dir.create("second")
    log.closed_segments(2)
    other.closed_segments(2)
    process.log_dir.checkpoint_high_watermarks()
    with ExitStack() as away:
        away.enter_context(process.second.away())
        running = away.enter_context(process.running())
        running.wait(lambda: stored_next(process.first, log.tp) == 20, "the first store")
        running.wait(lambda: holds(running, other, 2), "the second's to be held")
        assert process.second.contents() == {}
        process.second.heal()
        running.wait(lambda: stored_next(process.second, other.tp) == 20, "the second store")
    assert process.first.contents().keys() & process.second.contents().keys() == {
        LAYOUT.layout_key()
    }


def test_store_outage_at_the_start_loses_nothing(process: Process, log: PartitionLog) -> None:
    """Segments the broker deletes during the outage are pinned and uploaded once the store is
    back.
    """
    bases = log.closed_segments(3)
    process.log_dir.checkpoint_high_watermarks()
    with ExitStack() as away:
        away.enter_context(process.first.away())
        running = away.enter_context(process.running())
        running.wait(lambda: holds(running, log, 3), "all three to be held")
        for base in bases:
            log.unlink(base)
        assert process.first.contents() == {}
        process.first.heal()
        running.wait(lambda: stored_next(process.first, log.tp) == 30, "the store")
    assert stored_logs(process.first, log.tp) == {base: log.written[base] for base in bases}
    assert LAYOUT.layout_key() in process.first.contents(), "the note comes before the archive"


def _reaches(store: FakeStorage, log: PartitionLog, until: int) -> bool:
    return stored_next(store, log.tp) == until


@pytest.mark.parametrize("away", [False, True])
def test_layout_object_is_read_once_per_start_and_written_once(
    process: Process, log: PartitionLog, *, away: bool
) -> None:
    """The first partition of a store does so; the next start only reads the object."""
    logs = [log, *(process.log_dir.create(name) for name in ("b", "c", "d", "e", "second"))]
    key = LAYOUT.layout_key()

    def asked() -> list[tuple[int, int]]:
        return [(s.count("get", key), s.count("put", key)) for s in (process.first, process.second)]

    def run(until: int) -> None:
        for each in logs:
            each.closed_segments(1)
        process.log_dir.checkpoint_high_watermarks()
        if away:  # at the start only; the next question is the probe's
            process.first.fail("get", StoreUnavailableError("away"), key=key)
        with process.running() as running:
            for each in logs:
                store = process.second if each.tp.topic == "second" else process.first
                running.wait(partial(_reaches, store, each, until), str(each.tp))

    run(10)
    assert asked() == [(1 + away, 1), (1, 1)]
    run(20)
    assert asked() == [(2 + 2 * away, 1), (2, 1)]


Prepare = Callable[[FakeStorage], None]


def begun_with_other_bits(store: FakeStorage) -> None:
    write_or_check_note(store, ArchiveLayout(LAYOUT.cluster, 5), CLUSTER_ID)


def begun_by_another_cluster(store: FakeStorage) -> None:
    write_or_check_note(store, LAYOUT, "another")


def unfenced(store: FakeStorage) -> None:
    store._capabilities = UNFENCED


def refusing(store: FakeStorage) -> None:
    store.fail("get", AccessDeniedError("403 AccessDenied"), times=None)


@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        (begun_with_other_bits, ConfigurationError),
        (begun_by_another_cluster, ConfigurationError),
        (unfenced, ConfigurationError),
        (refusing, AccessDeniedError),
    ],
)
@pytest.mark.parametrize("url", [FIRST, SECOND])
def test_refused_start_writes_nothing(
    process: Process, log: PartitionLog, url: str, prepare: Prepare, kind: type[SidetierError]
) -> None:
    """It does not write the layout object to the store that would have been right either."""
    log.closed_segments(1)
    prepare(process.stores[url])
    before = process.first.contents(), process.second.contents()
    with pytest.raises(kind), process.running():
        pass
    assert (process.first.contents(), process.second.contents()) == before


@pytest.mark.parametrize("prepare", [begun_with_other_bits, begun_by_another_cluster])
def test_store_that_was_away_is_checked_before_the_first_write(
    process: Process, log: PartitionLog, prepare: Prepare
) -> None:
    """The store turns out to belong to another cluster: nothing is written, and the status gives
    the reason.
    """
    log.closed_segments(1)
    process.log_dir.checkpoint_high_watermarks()
    prepare(process.first)
    before = process.first.contents()
    with ExitStack() as away:
        away.enter_context(process.first.away())
        running = away.enter_context(process.running())
        running.wait(lambda: holds(running, log, 1), "the segment to be held")
        process.first.heal()
        running.wait(
            lambda: (
                (s := running.status(log.tp)) is not None
                and any(word in (s.last_error or "") for word in ("has keys with", "belongs"))
            ),
            "the reason",
        )
    assert process.first.contents() == before


FINGERPRINT = LAYOUT.key_fingerprint_key("k1")


def test_a_broker_with_another_key_of_the_same_name_does_not_start(
    process: Process, log: PartitionLog, tmp_path: Path
) -> None:
    """Also when encryption is turned on for an archive that has its note already."""
    for until, chosen in ((10, None), (20, encryption(tmp_path))):
        log.closed_segments(1)
        process.log_dir.checkpoint_high_watermarks()
        with process.running(chosen) as running:
            running.wait(partial(_reaches, process.first, log, until), "the upload")
    written = process.first.contents()[FINGERPRINT]
    with (
        pytest.raises(ConfigurationError, match=r"give all brokers the same file") as caught,
        process.running(encryption(tmp_path, k1=OTHER_KEY)),
    ):
        pass
    assert FINGERPRINT in str(caught.value)
    assert KEY.secret not in written
    # An old key is compared, too.
    rotated = encryption(tmp_path, "k2", k1=OTHER_KEY, k2=KEY)
    with pytest.raises(ConfigurationError, match="the key 'k1'"), process.running(rotated):
        pass
    with process.running(encryption(tmp_path, "k2", k1=KEY, k2=OTHER_KEY)) as running:
        log.closed_segments(1)
        process.log_dir.checkpoint_high_watermarks()
        running.wait(partial(_reaches, process.first, log, 30), "the upload with a new key")
    assert process.first.contents()[FINGERPRINT] == written
    assert LAYOUT.key_fingerprint_key("k2") in process.first.contents()


def test_keys_are_compared_when_the_store_is_back(
    process: Process, log: PartitionLog, tmp_path: Path
) -> None:
    log.closed_segments(1)
    process.log_dir.checkpoint_high_watermarks()
    write_or_check_fingerprint(process.first, LAYOUT, settings(k1=OTHER_KEY))
    with ExitStack() as away:
        away.enter_context(process.first.away())
        running = away.enter_context(process.running(encryption(tmp_path)))
        running.wait(lambda: holds(running, log, 1), "the segment to be held")
        process.first.heal()
        asked = process.first.count("get", FINGERPRINT)
        running.wait(lambda: process.first.count("get", FINGERPRINT) > asked + 1, "two checks")
    assert stored_logs(process.first, log.tp) == {}


def test_of_two_first_brokers_the_later_one_is_refused() -> None:
    store = FakeStorage()
    other = settings(k1=OTHER_KEY)
    store.race("put", lambda: write_or_check_fingerprint(store, LAYOUT, other), key=FINGERPRINT)
    with pytest.raises(ConfigurationError, match="the key 'k1' of this broker"):
        write_or_check_fingerprint(store, LAYOUT, settings())


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_the_fingerprint_leaves_none_or_the_whole_one(*, after: bool) -> None:
    store = FakeStorage()
    # The first request reads, the second one writes.
    with pytest.raises(KilledError):
        write_or_check_fingerprint(MortalStore(store, 1, after=after), LAYOUT, settings())
    assert (FINGERPRINT in store.contents()) == after
    write_or_check_fingerprint(store, LAYOUT, settings())
    with pytest.raises(ConfigurationError, match="the key 'k1' of this broker"):
        write_or_check_fingerprint(store, LAYOUT, settings(k1=OTHER_KEY))


def test_a_fingerprint_that_does_not_parse_is_named() -> None:
    store = FakeStorage()
    store.put_object(FINGERPRINT, BytesBody(b"[]"))
    with pytest.raises(MalformedObjectError, match=FINGERPRINT):
        write_or_check_fingerprint(store, LAYOUT, settings())


def test_other_archives_of_the_same_kafka_cluster_are_found() -> None:
    store, layout = FakeStorage(), ArchiveLayout("mine", 5)
    for name, kafka_id in (("mine", "K"), ("typo", "K"), ("staging", "other"), ("old", None)):
        write_or_check_note(store, ArchiveLayout(name, 5), kafka_id)
    store.put_object("_sidetier/damaged/layout.json", BytesBody(b"{"))
    store.put_object("_sidetier/a b/layout.json", BytesBody(b"{}"))
    store.put_object("_sidetier/empty/gaps/x", BytesBody(b""))
    assert other_archives(store, layout, "K") == ("typo",)
    assert other_archives(FakeStorage(), layout, "K") == ()
