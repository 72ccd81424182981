"""Actions of several steps: their effect on the cluster, and their records for the verdict.

Each function repairs its damage, and raises DidNotHappenError if the state of the cluster did not
allow the action.
"""

import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from devtools.sandbox.kafka import KafkaCluster, KraftCluster, ZookeeperCluster
from sidetier.brokers.kafka import KafkaNode
from sidetier.brokers.processes import STOP_GRACE_SECONDS, stop_together
from tests.end_to_end.chaos.ledger import Ledger, Partition
from tests.end_to_end.chaos.load import BATCH_RECORDS, PausableLoad
from tests.end_to_end.chaos.observer import Observer, Turn
from tests.end_to_end.chaos.scene import (
    ASK_SECONDS,
    CLUSTER_NAME,
    PARTITIONS,
    RECREATED,
    SHORTENED,
    SPOOLED,
    UNCLEAN,
    Scene,
    spool_of,
)
from tests.end_to_end.chaos.schedule import (
    BROKERS,
    FEW_PARTITIONS,
    DeleteRecords,
    ElectUncleanly,
    FailController,
    FailLogDir,
    FillDisk,
    RecreateTopic,
    RestartEverything,
    RestartOnSpool,
    StopMetadata,
)
from tests.harness.local_segments import closed_end, log_bases, wait_until_gone
from tests.harness.topics import (
    delete_records,
    delete_topic,
    elect_preferred_leader,
    move_leader,
    watermark_offsets,
)
from tests.harness.waiting import wait_for, wait_until

RECREATION = "topics"
"""The name of the guard of topics that are deleted and created again."""
_AHEAD_RECORDS = 20
_SEGMENTS_OF_RECORDS = 200  # of 500 bytes: four segments
_ARCHIVE_SECONDS = 30.0
_FAILURE_SECONDS = 120.0
_GOES_ON_SECONDS = 120.0
_TOPIC_SECONDS = 240.0
_REFUSALS = (
    KafkaException,
    AssertionError,
    KeyError,  # a recently started broker does not know every partition
    TimeoutError,
    subprocess.TimeoutExpired,
)
_ACTIVE = re.compile(r"Becoming the active controller at epoch (\d+)")


class DidNotHappenError(Exception):
    """A drawn action found no opportunity."""


class Guards:
    """Locks by name: of all brokers, of topics that are deleted, of each sidecar, and of the store
    as each sidecar sees it.
    """

    def __init__(self) -> None:
        names = ["brokers", RECREATION, *map(sidecar_of, BROKERS), *map(store_of, BROKERS)]
        self._locks = {name: threading.RLock() for name in names}

    @contextmanager
    def held(self, *names: str) -> Iterator[None]:
        """Hold these locks; they are always taken in the same order, brokers first and topics
        last.
        """
        with ExitStack() as stack:
            for name in sorted(names):
                stack.enter_context(self._locks[name])
            yield


def sidecar_of(broker: int) -> str:
    """The name of a sidecar's lock."""
    return f"sidecar-{broker}"


def store_of(broker: int) -> str:
    """The name of the lock for the store as a sidecar sees it."""
    return f"store-{broker}"


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers, observers, records and special topics' producers that an action needs.
    `begin_reading` starts readers at the beginning of the topic that is about to be deleted.
    `broken` are the deliberately broken log dirs; `spooled` has, by partition, the offset up to
    which brokers have deleted segments that only a spool holds.
    """

    scene: Scene
    ledger: Ledger
    observer: Observer
    loads: Mapping[str, PausableLoad]
    tell: Callable[[str], None]
    begin_reading: Callable[[], None] = lambda: None
    guards: Guards = field(default_factory=Guards)
    broken: set[str] = field(default_factory=set)
    spooled: dict[Partition, int] = field(default_factory=dict)

    @property
    def cluster(self) -> KafkaCluster:
        """The brokers."""
        return self.scene.cluster

    def expect_running(self, broker: int) -> None:
        """Raise AssertionError if a broker has ended by itself."""
        process = self.cluster.process_of(broker)
        assert process.running, f"broker {broker} has ended by itself\n{process.log_tail()}"

    def try_to(self, ask: Callable[..., None], *arguments: object) -> bool:
        """Send a request to the cluster; a refusal during other trouble is ignored."""
        try:
            ask(self.cluster.bootstrap_servers, *arguments)
        except _REFUSALS as error:
            self.tell(f"{ask.__name__} {arguments} was refused: {error!r}")
            return False
        return True

    def elect_preferred(self) -> None:
        """Run a preferred election of every partition that is not special."""
        for tp in PARTITIONS:
            self.try_to(elect_preferred_leader, *tp)

    def expect_nothing_in_spools(self) -> None:
        """Expect spooled segments to be lost. A full disk makes the sidecar release them for the
        broker's sake, and a failing disk cannot be read.
        """

        def is_stored() -> bool:
            return all(self.observer.next_offset(tp) >= end for tp, end in self.spooled.items())

        if not _wait_a_while(is_stored, _GOES_ON_SECONDS):
            raise DidNotHappenError(f"only a spool has what is up to {self.spooled}")

    def bring_back(self, broker: int, down: float) -> None:
        """Start a broker after a delay, and wait until it is in sync."""
        pause(down)
        self.cluster.start_broker(broker)
        self.scene.wait_until_healed()
        self.tell(f"broker {broker} is in sync again")


def pause(seconds: float) -> None:
    """Wait the given time, even if the run's time is over: damage lasts as long as drawn."""
    threading.Event().wait(seconds)


# -- unclean elections -----------------------------------------------------------------------------


def elect_uncleanly(stage: Stage, action: ElectUncleanly) -> None:
    """Let a leader acknowledge records alone, let its sidecar archive them, and then lose them."""
    scene, cluster, tp = stage.scene, stage.cluster, (UNCLEAN, action.number)
    scene.wait_until_healed()
    leader = scene.leader_of(tp)
    followers = scene.in_sync(tp) - {leader}
    if leader is None or len(followers) != 1:
        raise DidNotHappenError(f"{tp} is led by {leader}, followed by {followers}")
    (follower,) = followers
    load = stage.loads[UNCLEAN]
    with load.held(tp):
        cluster.stop_broker(follower)
        alone = partial(_is_alone, scene, tp, leader)
        wait_until(alone, 60, f"broker {leader} to be alone in sync", ASK_SECONDS)
        load.send(tp, _SEGMENTS_OF_RECORDS)
        here = _directory(scene, leader, tp)
        _wait_a_while(lambda: stage.observer.next_offset(tp) >= closed_end(here), _ARCHIVE_SECONDS)
        archived_to = stage.observer.pause(tp)
        before, _ = _last_epoch(here)
        cluster.kill_broker(leader)
        cluster.start_broker(follower)
        epoch, start = _elect(scene, tp, follower, before)
        lost = stage.ledger.lose_to_election(tp, start, archived_to)
        stage.observer.turn(tp, Turn(start, epoch))
        load.begin_anew(tp)
    stage.tell(
        f"{tp} lost {len(lost.records)} records from {start} on, archived up to {archived_to}, "
        f"in epoch {epoch} of broker {follower}"
    )
    stage.bring_back(leader, action.down)
    if not lost.records:
        raise DidNotHappenError("the unclean election has thrown nothing away")


def _is_alone(scene: Scene, tp: Partition, leader: int) -> bool:
    return scene.in_sync(tp) == {leader}


def _elect(scene: Scene, tp: Partition, broker: int, before: int) -> tuple[int, int]:
    """Elect this broker uncleanly once the old leader is known to be dead; return the new leader
    epoch and its start offset.
    """
    wanted = TopicPartition(*tp)

    def elected() -> bool:
        if scene.leader_of(tp) == broker:
            return True
        try:
            scene.admin.elect_leaders(ElectionType.UNCLEAN, [wanted]).result(60)
        except (KafkaException, TimeoutError):
            return False
        return scene.leader_of(tp) == broker

    wait_until(elected, 120, f"broker {broker} to lead {tp} uncleanly", ASK_SECONDS)
    directory = _directory(scene, broker, tp)
    wait_until(lambda: _last_epoch(directory)[0] > before, 60, "the new leader epoch")
    return _last_epoch(directory)


def _directory(scene: Scene, broker: int, tp: Partition) -> Path:
    directory = scene.directory_of(broker, tp)
    assert directory is not None, f"broker {broker} has no replica of {tp}"
    return directory


def _last_epoch(directory: Path) -> tuple[int, int]:
    """Return the last leader epoch in a checkpoint and its start offset, or -1 and 0."""
    return next(iter(reversed(_epochs(directory))), (-1, 0))


def _epochs(directory: Path) -> list[tuple[int, int]]:
    """Return the leader epochs in a checkpoint and their start offsets.

    A broker creates the file empty, with the replica.
    """
    rows = (directory / "leader-epoch-checkpoint").read_text().split("\n")[2:]
    return [(int(epoch), int(start)) for epoch, start in (row.split() for row in rows if row)]


def not_in_first_batch(before: int, starts: Iterable[int]) -> int:
    """Return the start of a leader epoch instead of an offset that its first batch may hold.

    A log start there becomes the start of the epoch at the leader (4.3.1). A follower that is
    restarted then truncates its log into that batch, is sent the whole batch, and gives the
    partition up until its next restart (UnexpectedAppendOffsetException).
    """
    return next((at for at in starts if at < before < at + BATCH_RECORDS), before)


def _wait_a_while(condition: Callable[[], object], seconds: float) -> bool:
    """Return whether the condition became true in time."""
    try:
        wait_until(condition, seconds, "what need not come", ASK_SECONDS)
    except AssertionError:
        return False
    return True


# -- disks -----------------------------------------------------------------------------------------


def fill_disk(stage: Stage, action: FillDisk) -> None:
    """Fill the disk until the broker notices."""
    _break(stage, action.broker, action.down, stage.scene.disks[action.broker].fill, again=True)


def fail_log_dir(stage: Stage, action: FailLogDir) -> None:
    """Make the disk fail."""
    fail = partial(stage.scene.disks[action.broker].fail, action.failure)
    _break(stage, action.broker, action.down, fail, again=False)


def _break(
    stage: Stage, broker: int, down: float, break_it: Callable[[], None], *, again: bool
) -> None:
    scene, cluster = stage.scene, stage.cluster
    scene.wait_until_healed()
    stage.expect_nothing_in_spools()
    stage.expect_running(broker)
    log_dir = cluster.log_dirs(broker)[1]
    inside = [tp for tp in PARTITIONS if (log_dir / f"{tp[0]}-{tp[1]}").is_dir()]
    if not inside:
        raise DidNotHappenError(f"{log_dir} has no partition")
    stage.elect_preferred()
    stage.broken.add(str(log_dir))
    break_it()

    def is_offline() -> bool:
        if again:
            break_it()
        return all(broker not in scene.in_sync(tp) for tp in inside)

    try:
        try:
            wait_until(
                is_offline, _FAILURE_SECONDS, f"broker {broker} to fail {log_dir}", ASK_SECONDS
            )
        except AssertionError:
            kept = [tp for tp in inside if broker in scene.in_sync(tp)]
            if len(kept) == len(inside):
                raise
            # KRaft's controller has another log dir for these replicas than the broker, and leaves
            # them in sync: the broker stopped serving 9 partitions, and the controller changed 8.
            raise DidNotHappenError(f"{kept} stay in sync on broker {broker}") from None
        stage.tell(f"broker {broker} goes on without {log_dir}, which has {inside}")
        _expect_progress(stage, broker)
        pause(down)
    finally:
        _repair(stage, broker)
    stage.tell(f"broker {broker} has {log_dir} again")


def _expect_progress(stage: Stage, broker: int) -> None:
    """Assert that the sidecar continues with the remaining log dir: it stores segments that close
    now. No segment closes while a transaction waits for the missing log dir.
    """
    here = {tp: stage.scene.directory_of(broker, tp) for tp in PARTITIONS}
    held = {
        tp: directory
        for tp, directory in here.items()
        if directory is not None and str(directory.parent) not in stage.broken
    }
    if not held:
        raise DidNotHappenError(f"broker {broker} has nothing in the log dir that is left")
    led = [tp for tp in held if stage.scene.leader_of(tp) == broker]
    if not led:
        led = [next(iter(held))]
        if not stage.try_to(move_leader, *led[0], broker):
            raise DidNotHappenError(f"broker {broker} leads nothing in the log dir that is left")
    ends = {tp: closed_end(held[tp]) for tp in led}

    def has_gone_on(tp: Partition) -> bool:
        stored = stage.observer.next_offset(tp)
        return stored > ends[tp] or (tp[0] == "paid" and stored >= closed_end(held[tp]))

    def is_stored() -> bool:
        return all(map(has_gone_on, led))

    wait_until(is_stored, _GOES_ON_SECONDS, f"the sidecar of {broker} to go on: {ends}", 0.2)
    stage.tell(f"the sidecar of {broker} has gone on with {len(ends)} partitions")


def _repair(stage: Stage, broker: int) -> None:
    """Repair a disk; a broker takes a log dir back only at its next start."""
    disk, sidecar = stage.scene.disks[broker], stage.scene.sidecars[broker]
    stage.cluster.stop_broker(broker)
    if disk.needs_closed_files:
        with stage.guards.held(sidecar_of(broker)):
            assert sidecar.process.running, f"the sidecar of {broker} has ended by itself"
            code = sidecar.stop()
            assert code == 0, f"the sidecar of {broker} ended with {code}"
            disk.repair()
            stage.scene.start_sidecar(broker, stage.tell)
    else:
        disk.repair()
    stage.bring_back(broker, 0)


# -- controllers, and everything -------------------------------------------------------------------


def fail_controller(stage: Stage, action: FailController) -> None:
    """Kill the controller; with ZooKeeper it is one of the brokers."""
    cluster = stage.cluster
    stage.scene.wait_until_healed()
    if isinstance(cluster, KraftCluster):
        epoch, active = _active_controller(cluster)
        active.process.kill()
        others = partial(_has_controller_after, cluster, epoch)
        wait_until(others, 60, "another active controller", ASK_SECONDS)
        pause(action.down)
        active.process.start()
        stage.tell(f"controller {active.id} was active in epoch {epoch}")
        return
    broker = _controlling_broker(stage.scene.admin)
    stage.expect_running(broker)
    cluster.kill_broker(broker)
    stage.bring_back(broker, action.down)
    stage.tell(f"broker {broker} was the controller")


def _active_controller(cluster: KraftCluster) -> tuple[int, KafkaNode]:
    """The epoch of the last controller election, and the controller."""
    begun = [(_last_active_epoch(node), node.id) for node in cluster.controllers.values()]
    epoch, node_id = max(begun)
    return epoch, cluster.controllers[node_id]


def _last_active_epoch(node: KafkaNode) -> int:
    with node.process.command.log.open(errors="replace") as lines:
        return max((int(found[1]) for found in map(_ACTIVE.search, lines) if found), default=-1)


def _has_controller_after(cluster: KraftCluster, epoch: int) -> bool:
    return _active_controller(cluster)[0] > epoch


def _controlling_broker(admin: AdminClient) -> int:
    controller = admin.list_topics(timeout=30).controller_id
    if controller < 0:
        raise DidNotHappenError("no broker is the controller")
    return int(controller)


def stop_metadata(stage: Stage, action: StopMetadata) -> None:
    """Stop the metadata service; brokers continue, but elect no leader meanwhile."""
    cluster = stage.cluster
    stage.scene.wait_until_healed()
    if isinstance(cluster, KraftCluster):
        controllers = [node.process for node in cluster.controllers.values()]
        stop_together(controllers, STOP_GRACE_SECONDS)
        pause(action.down)
        for process in controllers:
            process.start()
    elif isinstance(cluster, ZookeeperCluster):
        cluster.zookeeper.stop()
        pause(action.down)
        cluster.start_zookeeper()
    stage.scene.wait_until_healed()


def restart_everything(stage: Stage, _: RestartEverything) -> None:
    """Restart all servers one after the other, as an upgrade does."""
    cluster, scene = stage.cluster, stage.scene
    for broker in BROKERS:
        scene.wait_until_healed()
        stage.expect_running(broker)
        with stage.guards.held(sidecar_of(broker)):
            sidecar = scene.sidecars[broker]
            assert sidecar.process.running, f"the sidecar of {broker} has ended by itself"
            code = sidecar.stop()
            assert code == 0, f"the sidecar of {broker} ended with {code}"
            cluster.stop_broker(broker)
            cluster.start_broker(broker)
            scene.start_sidecar(broker, stage.tell)
    scene.wait_until_healed()
    if isinstance(cluster, KraftCluster):
        for node in cluster.controllers.values():
            node.process.stop()
            node.process.start()
            scene.wait_until_healed()
    elif isinstance(cluster, ZookeeperCluster):
        cluster.zookeeper.stop()
        cluster.start_zookeeper()
    scene.wait_until_healed()


# -- topics ----------------------------------------------------------------------------------------


def recreate_topic(stage: Stage, action: RecreateTopic) -> None:
    """Delete and recreate the topic, with no requests in flight."""
    scene, load = stage.scene, stage.loads[RECREATED]
    partitions = [(RECREATED, number) for number in range(FEW_PARTITIONS)]
    with load.held(*partitions):
        old = _topic_id(scene, partitions[0])
        if old is None:
            raise DidNotHappenError("nobody leads the topic that was to be deleted")
        stage.begin_reading()
        archived_to = {tp: stage.observer.pause(tp) for tp in partitions}
        wait_until(partial(_deleted, stage), _TOPIC_SECONDS, "the topic to go", ASK_SECONDS)
        pause(action.down)
        wait_until(partial(_created, scene), _TOPIC_SECONDS, "the new topic", ASK_SECONDS)
        ask = partial(_new_topic_id, scene, partitions[0], old)
        new = wait_for(ask, _TOPIC_SECONDS, "the new topic's id", ASK_SECONDS)
        for tp in partitions:
            lost = stage.ledger.lose_to_deletion(tp, archived_to[tp], old)
            stage.observer.turn(tp, Turn(0, topic_id=new))
            load.begin_anew(tp)
            if action.ahead:
                end = 1 + max((offset for offset, _ in lost.records.items()), default=-1)
                load.send(tp, max(end, archived_to[tp]) + _AHEAD_RECORDS)
    stage.tell(f"topic id {old} is {new} now; archived were {archived_to}")


def _deleted(stage: Stage) -> bool:
    """Return whether the deletion is complete. With ZooKeeper it waits for brokers that are
    down.
    """
    try:
        topics = stage.scene.admin.list_topics(timeout=30).topics
    except KafkaException:
        return False
    if RECREATED in topics:
        stage.try_to(delete_topic, RECREATED)
    return RECREATED not in topics


def _created(scene: Scene) -> bool:
    """Return whether the topic was created. Its name may still be "marked for deletion", a replica
    may have no broker, the controller may have moved, and the answer to a successful creation may
    be lost.
    """
    try:
        scene.create_topic(RECREATED)
    except KafkaException as error:
        later = (
            KafkaError.TOPIC_ALREADY_EXISTS,
            KafkaError.INVALID_REPLICATION_FACTOR,
            KafkaError.NOT_CONTROLLER,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.UNKNOWN,  # with ZooKeeper, while the old topic is being removed
            KafkaError._TIMED_OUT,
            KafkaError._TRANSPORT,
        )
        if error.args[0].code() not in later:
            raise
    except (TimeoutError, AssertionError, KeyError):
        return False
    return all(scene.leader_of((RECREATED, number)) for number in range(FEW_PARTITIONS))


def _topic_id(scene: Scene, tp: Partition) -> str | None:
    """The topic ID on the leader's disk."""
    leader = scene.leader_of(tp)
    directory = None if leader is None else scene.directory_of(leader, tp)
    try:
        text = "" if directory is None else (directory / "partition.metadata").read_text()
    except FileNotFoundError:
        return None
    found = re.search(r"topic_id: (\S+)", text)
    return None if found is None else found[1]


def _new_topic_id(scene: Scene, tp: Partition, old: str) -> str | None:
    found = _topic_id(scene, tp)
    return None if found == old else found


def shorten(stage: Stage, action: DeleteRecords) -> None:
    """Delete records; acknowledged records below need not be stored from now on."""
    tp, bootstrap = (SHORTENED, action.number), stage.cluster.bootstrap_servers
    try:
        low, high = watermark_offsets(bootstrap, *tp)
        leader = stage.scene.leader_of(tp)
        directory = None if leader is None else stage.scene.directory_of(leader, tp)
        if directory is None:
            raise DidNotHappenError(f"nobody leads {tp}")
        starts = [start for _, start in _epochs(directory)]
        before = not_in_first_batch(low + int((high - low) * action.share), starts)
        if before <= low:
            raise DidNotHappenError(f"{tp} has nothing from {low} to {high}")
        stage.ledger.raise_log_start(tp, before)
        delete_records(bootstrap, *tp, before)
    except (KafkaException, TimeoutError, OSError) as error:  # a replica's disk may be failing
        raise DidNotHappenError(f"{tp} was not shortened: {error!r}") from None
    stage.tell(f"{tp} begins at {before}, archived up to {stage.observer.next_offset(tp)}")


# -- the spool -------------------------------------------------------------------------------------


def restart_on_spool(stage: Stage, action: RestartOnSpool) -> None:
    """Kill all sidecars with only the spool left, and do not restart them. All locks must be held,
    and the store must be away for all sidecars.
    """
    scene, tp, load = stage.scene, (SPOOLED, action.number), stage.loads[SPOOLED]
    scene.wait_until_healed()
    leader = scene.leader_of(tp)
    if leader is None:
        raise DidNotHappenError(f"nobody leads {tp}")
    with load.held(tp):
        load.send(tp, _SEGMENTS_OF_RECORDS)
        directory = _directory(scene, leader, tp)
        end, stored = closed_end(directory), stage.observer.next_offset(tp)
        spool = spool_of(directory.parent) / CLUSTER_NAME / directory.name
        wait_until(
            lambda: (
                _is_kept(spool, directory, stage.observer.next_offset(tp))
                or scene.leader_of(tp) != leader
            ),
            60,
            f"the segments of {tp} up to {end} in {spool}",
        )
        if scene.leader_of(tp) != leader:  # it was paused before, and its session has expired
            raise DidNotHappenError(f"broker {leader} leads {tp} no more")
        for sidecar in scene.sidecars.values():
            sidecar.kill()
        delete_records(stage.cluster.bootstrap_servers, *tp, end)
        wait_until_gone(directory, below=end)
        stage.spooled[tp] = end
        stage.tell(f"broker {leader} has deleted {tp} from {stored} to {end}: the spool has it")
        pause(action.down)


def _is_kept(spool: Path, directory: Path, stored: int) -> bool:
    """Return whether each closed segment above `stored` is in the spool."""
    names = {path.name for path in spool.glob("*/*.log")}
    closed = pairwise(log_bases(directory))
    return all(f"{base:020d}-{end:020d}.log" in names for base, end in closed if end > stored)
