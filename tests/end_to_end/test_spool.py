"""The sidecar is killed with unstored segments, and the broker deletes them before it restarts."""

from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.errors import ServerDiedError
from tests.harness.archive_check import ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments, wait_until_gone
from tests.harness.s3 import S3ServerFactory, new_bucket
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]


SEGMENTS = 4
EACH_ROUND = 200  # about 1,000 bytes per record: independent of batching


def kept(home: Path, topic: str) -> list[str]:
    """Logs of the topic in the spool."""
    return [path.name for path in home.glob(f"test/{topic}-0/*/*.log")]


def kept_to(home: Path, topic: str, end: int) -> bool:
    """Return whether the last closed segment is spooled; earlier ones are linked before it."""
    return any(name.endswith(f"-{end:020d}.log") for name in kept(home, topic))


def test_kill_and_deletion_before_the_next_start_lose_nothing(
    kraft43: KraftCluster, topic: str, own_s3_server: S3ServerFactory, tmp_path: Path
) -> None:
    """Repeated twice in a row."""
    server = own_s3_server()
    store = s3_store(new_bucket(server))
    home = kraft43.log_dirs(1)[0].parent / f"spool-{topic}"
    home.mkdir()
    directory = kraft43.log_dirs(1)[0] / f"{topic}-0"
    configs = small_segments(retention_bytes=1, file_delete_delay_ms=5000)  # no closed one stays
    create_topic(kraft43.bootstrap_servers, topic, configs=configs)
    settings = merged(
        beside(kraft43, store, topics=[topic]), {"uploader": {"pins": {"spool": [str(home)]}}}
    )
    ledger = Ledger()
    with (
        Sidecar(tmp_path, settings, store) as sidecar,
        ArchiveWatch(store.objects),
    ):
        for _ in range(2):
            sidecar.wait_until_ready()
            server.pause()
            ledger.produce(kraft43.bootstrap_servers, topic, EACH_ROUND)
            end = closed_end(directory)
            wait_until(lambda e=end: kept_to(home, topic, e), 30, "second names")  # type: ignore[misc]
            sidecar.kill()
            assert len(kept(home, topic)) >= SEGMENTS
            wait_until_gone(directory, below=end)
            server.resume()
            sidecar.start()
            wait_until_stored(store.objects, topic, 0, end)
            assert sidecar.seen("gap.recorded") == []
        wait_until(lambda: not kept(home, topic), 30, "the spool to be empty")
        assert sidecar.stop() == 0
    assert compare(store.objects, ledger.records) >= end


def test_spool_on_another_mount_is_refused_at_the_start(
    kraft43: KraftCluster, topic: str, own_s3_server: S3ServerFactory, tmp_path: Path
) -> None:
    store = s3_store(new_bucket(own_s3_server()))
    settings = merged(
        beside(kraft43, store, topics=[topic]), {"uploader": {"pins": {"spool": ["/proc"]}}}
    )
    with pytest.raises(ServerDiedError, match="none is on the file system of the log dir"):
        Sidecar(tmp_path, settings, store).start()
