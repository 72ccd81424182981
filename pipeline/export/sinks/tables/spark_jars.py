"""The jars that Spark needs for a table format and for its Kafka source, by Spark's minor version.

A version is listed only if Maven Central has all jars for it and the tests run it.
"""

from enum import Enum
from typing import Final

from sidetier.segments.errors import ConfigurationError


class TableJar(Enum):
    """Purpose of a jar. The value names it in errors."""

    HUDI = "Hudi"
    ICEBERG = "Iceberg"
    KAFKA = "Spark's Kafka source"


_BY_MINOR: Final = {
    "3.5": {
        TableJar.HUDI: "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0",
        TableJar.ICEBERG: "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0",
        TableJar.KAFKA: "org.apache.spark:spark-sql-kafka-0-10_2.12:{version}",
    },
    "4.0": {
        TableJar.ICEBERG: "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
        TableJar.KAFKA: "org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
    },
}


def jar_of(jar: TableJar, spark_version: str) -> str:
    """Return the coordinates of a jar for a Spark version such as `4.0.0`.

    Raises:
        ConfigurationError: no jar is known for that version.
    """
    minor = ".".join(spark_version.split(".")[:2])
    coordinates = _BY_MINOR.get(minor, {}).get(jar)
    if coordinates is None:
        supported = " and ".join(name for name, jars in _BY_MINOR.items() if jar in jars)
        raise ConfigurationError(
            f"Spark {spark_version}: no jar of {jar.value} is known to go with it, only with Spark "
            f"{supported}. Install such a PySpark (sidetier[spark35], sidetier[spark]), or name "
            "the jars yourself with spark.jars.packages (--spark-conf)"
        )
    return coordinates.format(version=spark_version)


def hint_of(jar: TableJar, spark_version: str) -> str:
    """Return how to start Spark with a jar that it does not find."""
    try:
        return f"Start it with --packages {jar_of(jar, spark_version)}"
    except ConfigurationError as error:
        return str(error)
