"""`--kafka-option` and `--kafka-config`: properties of the client that reads from the brokers.

Exports to files use librdkafka and its property names. Exports to tables use Kafka's Java client,
below Spark's source, and the Java client's names.
"""

import re
from typing import Final

from sidetier.cli.export.options import TailOptions
from sidetier.config.properties_file import read_properties
from sidetier.config.types import SecretRef
from sidetier.segments.errors import ConfigurationError

BOOTSTRAP: Final = "bootstrap.servers"
_OURS: Final = {
    "isolation.level": "--isolation says it",
    "auto.offset.reset": "the export keeps its own offsets",
    "enable.auto.commit": "nothing is committed to Kafka",
    "enable.auto.offset.store": "nothing is committed to Kafka",
    "enable.partition.eof": "the export sets it",
    "key.deserializer": "records are read as they are",
    "value.deserializer": "records are read as they are",
    "interceptor.classes": "records are read as they are",
}
_SECRET: Final = re.compile("password|secret|jaas|keystore[.]key$", re.IGNORECASE)
"""Names of the Java client's properties that hold secrets."""
_PREFIX: Final = "kafka."
"""Optional prefix of names, as in Spark's Kafka source."""


def kafka_properties(tail: TailOptions) -> dict[str, str]:
    """Return the given properties; the command line overrides the file.

    Raises:
        ConfigurationError: The file cannot be read, or the export sets an option itself.
    """
    file = tail.kafka_config
    in_file = {} if file is None else read_properties(file, "--kafka-config")
    merged = {**in_file, **tail.kafka_options}
    properties = {name.removeprefix(_PREFIX): value for name, value in merged.items()}
    for name in sorted(_OURS.keys() & properties.keys()):
        raise ConfigurationError(f"--kafka-option {name}: omit it: {_OURS[name]}")
    if properties and tail.action != "kafka":
        raise ConfigurationError("--kafka-option and --kafka-config are for --tail kafka")
    return properties


def java_kafka_properties(tail: TailOptions) -> dict[str, str]:
    """Return the properties of Kafka's Java client, with secrets resolved.

    A secret on the command line must be a reference, env:NAME or file:/path: other users see the
    command line, and Spark shows the one of spark-submit.

    Raises:
        ConfigurationError: As `kafka_properties`; or a secret is not a reference or cannot be read.
    """
    named = {name.removeprefix(_PREFIX): text for name, text in tail.kafka_options.items()}
    secrets = {
        name: SecretRef.of_text(f"--kafka-option {name}", text)
        for name, text in named.items()
        if _SECRET.search(name)
    }
    return kafka_properties(tail) | {
        name: reference.resolve() for name, reference in secrets.items()
    }
