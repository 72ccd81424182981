"""Kafka's command-line tools, started without the shell scripts of Kafka's distribution."""

import os
from typing import Final

from sidetier.brokers.jars import Artifact, Distribution, class_path, jars_of
from sidetier.brokers.java import find_java
from sidetier.brokers.kafka import JARS, JVM_FLAGS, KAFKA_4_3

KAFKA_TOOLS: Final = Distribution(
    f"kafka-tools-{KAFKA_4_3}",
    (Artifact("org.apache.kafka", "kafka-tools", KAFKA_4_3, alone=True),),
)
"""The tools' own jar; the broker's jars contain what it depends on."""


def console_consumer() -> list[str]:
    """Return the command line of `kafka-console-consumer.sh`, up to its options.

    Raises:
        FetchError: A jar is not in the cache, and could not be fetched.
        JavaMissingError: No Java was found.
    """
    folders = [jars_of(JARS[KAFKA_4_3]), jars_of(KAFKA_TOOLS)]
    jars = os.pathsep.join(map(class_path, folders))
    main_class = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    return [str(find_java().program), *JVM_FLAGS, "-cp", jars, main_class]
