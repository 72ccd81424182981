"""Kafka clients for tests: MirrorMaker 2, and a reader with franz-go."""

import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from devtools.sandbox.go import Go, GoBuilder
from sidetier.brokers.jars import Artifact, Distribution

MIRROR_MAKER: Final = Distribution(
    "mirror-maker-4.3.1",
    (
        Artifact("org.apache.kafka", "connect-mirror", "4.3.1"),
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
)
_READER: Final = Path(__file__).with_name("franz_go")
_FILES: Final = ("go.mod", "go.sum", "log.go", "main.go")


def franz_go_reader(builder: GoBuilder) -> Path:
    """Return the program of `franz_go`; it is built if the cache lacks this version of it.

    Raises:
        FetchError: The download or the build failed.
    """
    digest = hashlib.sha256(b"".join((_READER / name).read_bytes() for name in _FILES))
    return builder.folder(f"franz-go-reader-{digest.hexdigest()[:12]}", _build) / "reader"


def _build(go: Go, folder: Path) -> None:
    with TemporaryDirectory(prefix="module-", dir=folder) as name:
        for source in _FILES:
            shutil.copy2(_READER / source, name)
        go.run(Path(name), ["build", "-buildvcs=false", "-o", str(folder / "reader"), "."])
