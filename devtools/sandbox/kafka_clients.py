"""Kafka clients for tests: MirrorMaker 2, Connect, Kafka Streams, Flink, and franz-go."""

import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from devtools.sandbox.go import Go, GoBuilder
from sidetier.brokers.jars import Artifact, Distribution
from sidetier.brokers.kafka import KAFKA_3_9, KAFKA_4_3

_LOG4J2: Final = Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
MIRROR_MAKER: Final = Distribution(
    "mirror-maker-4.3.1",
    (
        Artifact("org.apache.kafka", "connect-mirror", "4.3.1"),
        _LOG4J2,
    ),
)
FILE_CONNECTORS: Final = Distribution(
    f"connect-file-{KAFKA_4_3}",
    (Artifact("org.apache.kafka", "connect-file", KAFKA_4_3, alone=True),),
)
"""Connectors for files; the worker's jars, of `MIRROR_MAKER`, contain what they depend on."""
STREAMS: Final = {
    version: Distribution(
        f"kafka-streams-{version}", (Artifact("org.apache.kafka", "kafka-streams", version), logger)
    )
    for version, logger in (
        (KAFKA_4_3, _LOG4J2),
        (KAFKA_3_9, Artifact("org.slf4j", "slf4j-reload4j", "1.7.36")),
    )
}
"""Kafka Streams, by version; 3.9 is in `make test-long` only."""
FLINK: Final = Distribution(
    "flink-2.2.1-kafka",
    (
        Artifact("org.apache.flink", "flink-clients", "2.2.1"),
        Artifact("org.apache.flink", "flink-connector-base", "2.2.1"),
        Artifact("org.apache.flink", "flink-connector-kafka", "5.0.0-2.2"),
        _LOG4J2,
    ),
)
"""Flink with its Kafka connector, in `make test-long` only."""
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
