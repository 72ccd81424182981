"""One sidecar stores each change of the cluster state; the other sidecars stand by."""

import json

import pytest
from structlog.testing import capture_logs

from sidetier.archive.objects.cluster_snapshots import (
    read_cluster_state,
    read_index,
    snapshot_times,
)
from sidetier.config.uploader import ClusterSnapshotsConfig
from sidetier.segments.cluster_state import SnapshotKind
from sidetier.segments.errors import (
    AccessDeniedError,
    ConfigurationError,
    MalformedObjectError,
    PreconditionFailedError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.offsets import BrokerId
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfMatch, PutOptions
from sidetier.telemetry.metrics import status_families
from sidetier.telemetry.status import ClusterSnapshotStatus
from sidetier.uploader import cluster_snapshots, engine
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.clock import Clock
from sidetier.uploader.cluster_snapshots import SnapshotWriter, TurnResult
from sidetier.uploader.stores import Place
from tests.harness.cluster_states import STATE, StateByHand, offsets
from tests.harness.daemons import LAYOUT, RunningDaemon, Site, place_of

GROUPS = SnapshotKind.GROUP_OFFSETS
INDEX = LAYOUT.cluster_index_key()


class Sidecar:
    """A snapshot writer with a manual clock; the machine started 1,000 s ago."""

    def __init__(self, store: FakeStorage, broker_id: int = 1, **settings: object) -> None:
        self.now = 1000.0
        self.ahead = 1_700_000_000.0
        self.source = StateByHand()
        self.writer = SnapshotWriter(
            ClusterSnapshotsConfig.model_validate(settings),
            self.source,
            place_of(store),
            BrokerId(broker_id),
            Clock(lambda: self.now, lambda: self.ahead + self.now),
        )

    def turn(self, seconds: float = 60.0) -> TurnResult:
        """Take the next turn, the given number of seconds after the last one."""
        self.now += seconds
        self.source.asked.clear()
        return self.writer.take_turn()

    def commit(self, offset: int) -> None:
        self.source.answers[GROUPS] = offsets(offset)


def keys_of(store: FakeStorage, kind: SnapshotKind) -> list[str]:
    return list(snapshot_times(store, LAYOUT, kind))


def test_first_turn_stores_every_kind(store: FakeStorage) -> None:
    sidecar = Sidecar(store)
    result = sidecar.turn()
    assert result.is_writer
    assert result.index is not None
    assert result.index.snapshots.keys() == set(SnapshotKind)
    assert not result.problems
    state = read_cluster_state(store, LAYOUT)
    assert state.topics == STATE[SnapshotKind.TOPICS]
    assert state.broker_configs == STATE[SnapshotKind.BROKER_CONFIGS]
    assert state.acls == STATE[SnapshotKind.ACLS]
    assert state.quotas == STATE[SnapshotKind.QUOTAS]
    assert state.scram_users == STATE[SnapshotKind.SCRAM_USERS]
    assert state.group_offsets == STATE[GROUPS]


def test_unchanged_state_is_confirmed_without_a_new_snapshot(store: FakeStorage) -> None:
    sidecar = Sidecar(store)
    first = sidecar.turn().index
    puts = store.count("put")
    second = sidecar.turn().index
    assert store.count("put") == puts + 1, "the index alone"
    assert first is not None
    assert second is not None
    assert second.snapshots[GROUPS].confirmed_ms == first.snapshots[GROUPS].confirmed_ms + 60_000
    sidecar.commit(8)
    sidecar.turn()
    assert read_cluster_state(store, LAYOUT).group_offsets == offsets(8)
    assert len(keys_of(store, GROUPS)) == 2


def test_definitions_are_read_less_often_than_offsets(store: FakeStorage) -> None:
    sidecar = Sidecar(store)
    sidecar.turn()
    assert set(sidecar.source.asked) == set(SnapshotKind)
    sidecar.turn()
    assert sidecar.source.asked == [GROUPS]
    sidecar.turn(600)
    assert set(sidecar.source.asked) == set(SnapshotKind)


def test_source_receives_the_stored_state_even_after_a_restart(store: FakeStorage) -> None:
    sidecar = Sidecar(store)
    sidecar.turn()
    assert sidecar.source.before[GROUPS] is None
    sidecar.commit(8)
    sidecar.turn()
    assert sidecar.source.before[GROUPS] == STATE[GROUPS]
    again = Sidecar(store)
    again.turn()
    assert again.source.before[GROUPS] == offsets(8)
    assert again.source.before[SnapshotKind.ACLS] == STATE[SnapshotKind.ACLS]


def test_standby_sidecars_send_no_broker_request(store: FakeStorage) -> None:
    first, second = Sidecar(store, 1), Sidecar(store, 2)
    first.turn()
    for _ in range(10):
        first.turn()
        result = second.turn()
        assert not result.is_writer
        assert result.index is not None
        assert result.index.broker_id == 1
        assert second.source.asked == []


def test_another_sidecar_takes_over_after_three_intervals(store: FakeStorage) -> None:
    first, second = Sidecar(store, 1), Sidecar(store, 2)
    first.turn()
    assert [second.turn().is_writer for _ in range(4)] == [False, False, False, True]
    second.commit(20)
    assert second.turn().is_writer
    assert not first.turn().is_writer, "the first one was only slow, and stands by"
    assert first.source.asked == []
    assert read_cluster_state(store, LAYOUT).group_offsets == offsets(20)


def test_restarted_writer_continues_at_once(store: FakeStorage) -> None:
    Sidecar(store, 1).turn()
    assert not Sidecar(store, 2).turn().is_writer
    assert Sidecar(store, 1).turn().is_writer


def test_only_one_of_two_starting_sidecars_queries_the_brokers(store: FakeStorage) -> None:
    """The claim of the second sidecar fails because the index of the first one exists by then."""
    first, second = Sidecar(store, 1), Sidecar(store, 2)
    store.fail("put", StoreTimeoutError("for the test"), key=INDEX)
    with pytest.raises(StoreTimeoutError):
        second.turn()
    assert second.source.asked == []
    first.turn()
    assert not second.turn().is_writer
    assert second.source.asked == []


def test_sidecar_with_a_refused_claim_sends_no_broker_request(store: FakeStorage) -> None:
    """Another sidecar was faster."""
    sidecar = Sidecar(store)
    store.fail("put", PreconditionFailedError("412"), key=INDEX)
    assert not sidecar.turn().is_writer
    assert sidecar.source.asked == []
    assert sidecar.turn().is_writer


def test_writer_that_lost_its_claim_during_a_turn_stands_by(store: FakeStorage) -> None:
    first, second = Sidecar(store, 1), Sidecar(store, 2)
    first.turn()
    for _ in range(3):
        second.turn()
    stored = read_index(store, LAYOUT)
    assert stored is not None
    assert second.turn().is_writer
    with pytest.raises(Exception, match="etag"):  # what the first one would write now is refused
        store.put_object(INDEX, BytesBody(b"{}"), PutOptions(condition=IfMatch(stored.etag)))
    assert not first.turn().is_writer


def test_lost_answer_to_the_index_write_is_no_conflict(store: FakeStorage) -> None:
    sidecar = Sidecar(store)
    sidecar.turn()
    # The retry layer tries again, and the store refuses because the first try succeeded.
    store.fail("put", PreconditionFailedError("412"), key=INDEX, after=True)
    assert sidecar.turn().is_writer
    assert sidecar.turn().is_writer


def test_missing_permission_is_reported_and_does_not_stop_other_kinds(store: FakeStorage) -> None:
    sidecar = Sidecar(store)
    sidecar.source.refused[SnapshotKind.ACLS] = "needs DESCRIBE on the cluster"
    sidecar.source.incomplete[GROUPS] = "a group is missing"
    result = sidecar.turn()
    assert result.problems == {
        SnapshotKind.ACLS: "needs DESCRIBE on the cluster",
        GROUPS: "a group is missing",
    }
    assert result.index is not None
    assert result.index.snapshots.keys() == set(SnapshotKind) - {SnapshotKind.ACLS}
    other = Sidecar(store, 2).turn()
    assert other.problems == result.problems, "every sidecar knows of it"
    sidecar.source.refused.clear()
    sidecar.source.incomplete.clear()
    assert sidecar.turn(600).problems == {}


def test_sidecar_whose_broker_is_away_leaves_the_turn_to_another(
    store: FakeStorage,
) -> None:
    first, second = Sidecar(store, 1), Sidecar(store, 2)
    first.turn()
    first.source.away = True
    second.turn()
    for _ in range(2):
        assert first.turn().problems[GROUPS] == "away for the test"
        assert not second.turn().is_writer
    first.turn()
    assert second.turn().is_writer


def test_excluded_kinds_are_not_read(store: FakeStorage) -> None:
    sidecar = Sidecar(store, exclude=("acls", "scram-users"))
    sidecar.turn()
    left_out = {SnapshotKind.ACLS, SnapshotKind.SCRAM_USERS}
    assert set(sidecar.source.asked) == set(SnapshotKind) - left_out


def test_snapshot_history_is_bounded(store: FakeStorage) -> None:
    sidecar = Sidecar(store, history=3)
    for offset in range(6):
        sidecar.commit(offset)
        sidecar.turn()
    keys = keys_of(store, GROUPS)
    assert len(keys) == 3
    assert keys == sorted(keys)
    assert read_cluster_state(store, LAYOUT).group_offsets == offsets(5)


def test_snapshots_continue_without_delete_permission(store: FakeStorage) -> None:
    sidecar = Sidecar(store, history=1)
    store.fail("delete", AccessDeniedError("403"), times=None)
    with capture_logs() as logs:
        for offset in range(4):
            sidecar.commit(offset)
            assert sidecar.turn().is_writer
    assert len(keys_of(store, GROUPS)) == 4
    told = [entry for entry in logs if entry["event"] == "cluster_snapshot.not_removed"]
    assert len(told) == 1


def test_snapshot_after_a_clock_set_back_still_sorts_last(store: FakeStorage) -> None:
    sidecar = Sidecar(store, history=1)
    sidecar.turn()
    sidecar.commit(8)
    sidecar.ahead -= 86400
    sidecar.turn()
    assert read_cluster_state(store, LAYOUT).group_offsets == offsets(8)


@pytest.mark.parametrize("nth", range(1, 9))
def test_kill_after_any_write_leaves_a_state_the_next_start_continues(
    store: FakeStorage, nth: int
) -> None:
    """Eight writes: one claim, six snapshots, the index."""
    sidecar = Sidecar(store)
    store.fail("put", KeyboardInterrupt(), nth=nth, after=True)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        sidecar.turn()
    before = read_cluster_state(store, LAYOUT)
    assert (before.group_offsets is not None) == (nth >= 7)
    again = Sidecar(store)
    again.now = sidecar.now + 5
    result = again.turn()
    assert result.is_writer
    assert read_cluster_state(store, LAYOUT).group_offsets == STATE[GROUPS]
    assert result.index is not None
    assert result.index.snapshots[GROUPS].key == keys_of(store, GROUPS)[-1]


def test_damaged_snapshot_does_not_stop_the_next_one(store: FakeStorage) -> None:
    Sidecar(store).turn()
    key = keys_of(store, GROUPS)[0]
    store.put_object(key, BytesBody(b"{"))
    again = Sidecar(store)
    again.commit(8)
    assert again.turn(120).is_writer
    assert read_cluster_state(store, LAYOUT).group_offsets == offsets(8)


def test_index_of_a_later_version_is_not_overwritten(store: FakeStorage) -> None:
    theirs = json.dumps({"version": 2}).encode()
    store.put_object(INDEX, BytesBody(theirs))
    with pytest.raises(MalformedObjectError, match="version 2"):
        Sidecar(store).turn()
    assert store.contents() == {INDEX: theirs}


def test_no_write_to_a_store_of_another_cluster(store: FakeStorage) -> None:
    def refuse() -> None:
        raise ConfigurationError("another cluster's archive")

    archive_writer = ArchiveWriter(store, LAYOUT, MetadataCache(1), refuse)
    source = StateByHand()
    place = Place(store, LAYOUT, archive_writer)
    clock = Clock(lambda: 0.0, lambda: 0.0)
    writer = SnapshotWriter(ClusterSnapshotsConfig(), source, place, BrokerId(1), clock)
    with pytest.raises(ConfigurationError):
        writer.take_turn()
    assert store.contents() == {}
    assert source.asked == []


# -- in the daemon --------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a turn whenever the pool is free instead of once per minute."""
    monkeypatch.setattr(cluster_snapshots, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.02)


def shown(running: RunningDaemon, kind: SnapshotKind) -> ClusterSnapshotStatus:
    snapshots = running.daemon.status.snapshot().cluster_snapshots
    return next(one for one in snapshots if one.kind == kind)


@pytest.mark.usefixtures("at_once")
def test_daemon_takes_snapshots_and_reports_their_state(site: Site, store: FakeStorage) -> None:
    source = site.cluster_state = StateByHand()
    source.refused[SnapshotKind.ACLS] = "needs DESCRIBE on the cluster"
    with capture_logs() as logs, site.running(cluster_snapshots={"interval": 1.0}) as running:
        running.wait(lambda: shown(running, GROUPS).stored, "the snapshot")
        assert shown(running, SnapshotKind.ACLS).problem == "needs DESCRIBE on the cluster"
        assert not shown(running, SnapshotKind.ACLS).stored
        running.wait(lambda: source.asked.count(GROUPS) > 1, "another turn")
        families = status_families(running.daemon.status.snapshot(), 10)
        samples = {
            (sample.name, sample.labels["kind"]): sample.value
            for family in families
            if family.name.startswith("sidetier_cluster_snapshot")
            for sample in family.samples
        }
        assert 0 <= samples["sidetier_cluster_snapshot_age_seconds", "group-offsets"] < 30
        assert samples["sidetier_cluster_snapshot_problem", "acls"] == 1
        assert samples["sidetier_cluster_snapshot_problem", "topics"] == 0
    assert source.closed
    assert read_cluster_state(store, LAYOUT).topics == STATE[SnapshotKind.TOPICS]
    told_of = [entry for entry in logs if entry["event"] == "cluster_snapshot.incomplete"]
    assert [(entry["kind"], entry["error"]) for entry in told_of] == [
        ("acls", "needs DESCRIBE on the cluster")
    ]


@pytest.mark.usefixtures("at_once")
def test_store_outage_and_unexpected_error_delay_only_snapshots(
    site: Site, store: FakeStorage
) -> None:
    source = site.cluster_state = StateByHand()
    with site.running(cluster_snapshots={"interval": 1.0}) as running:
        store.fail("get", StoreUnavailableError("for the test"), key=INDEX, times=1)
        running.wait(lambda: store.count("get", INDEX) > 0, "the first try")
        running.wait(lambda: shown(running, GROUPS).stored, "another try")
        source.unexpected = ZeroDivisionError("for the test")
        running.wait(lambda: running.daemon.status.snapshot().held_errors, "the error")
        source.unexpected = None
        running.wait(lambda: not running.daemon.status.snapshot().held_errors, "the next turn")


def test_status_has_no_snapshots_without_a_source(site: Site) -> None:
    with site.running() as running:
        assert running.daemon.status.snapshot().cluster_snapshots == ()


def test_configuration_can_exclude_each_kind() -> None:
    every = [kind.value for kind in SnapshotKind]
    config = ClusterSnapshotsConfig.model_validate({"exclude": every})
    assert list(config.exclude) == every


def test_kinds_the_source_cannot_read_are_neither_read_nor_shown(
    site: Site, store: FakeStorage
) -> None:
    sidecar = Sidecar(store)
    del sidecar.source.answers[SnapshotKind.QUOTAS]
    assert SnapshotKind.QUOTAS not in sidecar.turn().problems
    assert SnapshotKind.QUOTAS not in sidecar.source.asked
    site.cluster_state = sidecar.source
    with site.running(cluster_snapshots={"exclude": ["acls"]}) as running:
        shown_kinds = [one.kind for one in running.daemon.status.snapshot().cluster_snapshots]
    assert shown_kinds == ["topics", "broker-configs", "scram-users", "group-offsets"]
