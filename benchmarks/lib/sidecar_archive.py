"""An archive on a real store that the sidecar has written from a log dir."""

import shutil
from pathlib import Path

from lib.log_dirs import Shape, make_log_dir
from lib.sidecar import Setup, Sidecar
from lib.stores import LAYOUT, RealStore
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset

_TIMEOUT = 1800.0


def archive(directory: Path, store: RealStore, shape: Shape) -> list[tuple[str, int]]:
    """Let the sidecar store a log dir, and return key and size of every `.log`."""
    log_dir = make_log_dir(directory / "log-dir", shape)
    setup = Setup(
        directory / "sidecar",
        [log_dir.path],
        store.storage,
        more={"uploader": {"niceness": 0}},
        environment=store.environment,
    )
    with Sidecar(setup) as sidecar:
        sidecar.wait_until(lambda: store.holds_all_of(log_dir), _TIMEOUT, "everything is stored")
    stored = [
        (
            LAYOUT.object_key(tp, BaseOffset(base), FileKind.LOG),
            (log_dir.path / str(tp) / segment_file_name(BaseOffset(base), FileKind.LOG))
            .stat()
            .st_size,
        )
        for tp in shape.topic_partitions()
        for base in shape.bases
    ]
    shutil.rmtree(log_dir.path)
    return stored
