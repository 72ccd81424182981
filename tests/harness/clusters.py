"""Factories for clusters of one test; every cluster is killed when the stack is closed."""

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Protocol

from devtools.sandbox.kafka import KraftCluster, ZookeeperCluster
from sidetier.brokers.kafka import KAFKA_3_9, KAFKA_4_3, Properties


class KraftFactory(Protocol):
    """Starts a cluster, and returns it once it answers; the arguments are those of KraftCluster."""

    def __call__(
        self,
        version: str = KAFKA_4_3,
        *,
        brokers: int = 1,
        controllers: int = 0,
        log_dirs: int = 1,
        properties: Properties | None = None,
    ) -> KraftCluster: ...


class ZookeeperFactory(Protocol):
    """Starts a cluster, and returns it once it answers; as for ZookeeperCluster."""

    def __call__(
        self,
        version: str = KAFKA_3_9,
        *,
        brokers: int = 1,
        log_dirs: int = 1,
        chroot: str = "",
        properties: Properties | None = None,
    ) -> ZookeeperCluster: ...


def kraft_factory(directory: Path, stack: ExitStack) -> KraftFactory:
    """Return a factory of clusters in `directory`/kraft-1, kraft-2, ..."""
    numbers = count(1)

    def start(
        version: str = KAFKA_4_3,
        *,
        brokers: int = 1,
        controllers: int = 0,
        log_dirs: int = 1,
        properties: Properties | None = None,
    ) -> KraftCluster:
        cluster = KraftCluster(
            directory / f"kraft-{next(numbers)}",
            version,
            brokers=brokers,
            controllers=controllers,
            log_dirs=log_dirs,
            properties=properties or {},
        )
        return stack.enter_context(cluster)

    return start


def zookeeper_factory(directory: Path, stack: ExitStack) -> ZookeeperFactory:
    """Return a factory of clusters in `directory`/zookeeper-1, zookeeper-2, ..."""
    numbers = count(1)

    def start(
        version: str = KAFKA_3_9,
        *,
        brokers: int = 1,
        log_dirs: int = 1,
        chroot: str = "",
        properties: Properties | None = None,
    ) -> ZookeeperCluster:
        cluster = ZookeeperCluster(
            directory / f"zookeeper-{next(numbers)}",
            version,
            brokers=brokers,
            log_dirs=log_dirs,
            chroot=chroot,
            properties=properties or {},
        )
        return stack.enter_context(cluster)

    return start
