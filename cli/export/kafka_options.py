"""`--kafka-option` and `--kafka-config`: how the client is set up that reads the brokers' records.

For files that client is librdkafka, for tables Kafka's own in Java, below Spark's source; the names
are theirs.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sidetier.config.properties_file import parse_properties
from sidetier.config.types import SecretRef
from sidetier.segments.errors import ConfigurationError

BOOTSTRAP: Final = "bootstrap.servers"
_OURS: Final = {
    "isolation.level": "--isolation says it",
    "auto.offset.reset": "offsets are the export's own",
    "enable.auto.commit": "nothing is committed to Kafka",
    "enable.auto.offset.store": "nothing is committed to Kafka",
    "enable.partition.eof": "it is the export's own",
    "key.deserializer": "records are read as they are",
    "value.deserializer": "records are read as they are",
    "interceptor.classes": "records are read as they are",
}
_SECRET: Final = re.compile("password|secret|jaas|keystore[.]key$", re.IGNORECASE)
"""In Java's names of what must not be seen."""
_PREFIX: Final = "kafka."
"""As Spark's Kafka source has it; it may be there."""


def kafka_properties(given: Mapping[str, Any]) -> dict[str, str]:
    """What was given: the command line before the file.

    Raises:
        ConfigurationError: the file cannot be read, or an option is the export's own.
    """
    found = {**_in_file(given["kafka_config"]), **given["kafka_options"]}
    properties = {name.removeprefix(_PREFIX): value for name, value in found.items()}
    for name in sorted(_OURS.keys() & properties.keys()):
        raise ConfigurationError(f"--kafka-option {name}: leave it away: {_OURS[name]}")
    if properties and given["tail"] != "kafka":
        raise ConfigurationError("--kafka-option and --kafka-config are for --tail kafka")
    return properties


def java_kafka_properties(given: Mapping[str, Any]) -> dict[str, str]:
    """The same for Kafka's client in Java, with secrets: on the command line they are given by
    where they are. Others see that line, and Spark shows it where spark-submit was given it.

    Raises:
        ConfigurationError: as `kafka_properties`; a secret stands on the command line, or cannot be
            read.
    """
    named = {name.removeprefix(_PREFIX): text for name, text in given["kafka_options"].items()}
    secrets = {
        name: by_reference(name, text) for name, text in named.items() if _SECRET.search(name)
    }
    return kafka_properties(given) | {name: one.resolve() for name, one in secrets.items()}


def by_reference(name: str, value: str, option: str = "--kafka-option") -> SecretRef:
    """Where a secret is; raises ConfigurationError where it is the secret itself."""
    kind, _, place = value.partition(":")
    if kind not in {"env", "file"} or not place:
        raise ConfigurationError(
            f"{option} {name}: must say where the secret is, env:NAME or file:/path, and not "
            "be the secret"
        )
    try:
        return SecretRef.model_validate({kind: place})
    except ValidationError as error:
        raise ConfigurationError(f"{option} {name}: {error.errors()[0]['msg']}") from None


def _in_file(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--kafka-config {file}: cannot be read: {error}") from None
    return {one.key: one.value for one in parse_properties(text, str(file))}
