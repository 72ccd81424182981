import re

import pytest

from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar, hint_of, jar_of
from sidetier.segments.errors import ConfigurationError


@pytest.mark.parametrize(
    ("jar", "version", "coordinates"),
    [
        (TableJar.KAFKA, "3.5.3", "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3"),
        (TableJar.KAFKA, "4.0.1", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1"),
        (TableJar.ICEBERG, "3.5.9", "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0"),
        (TableJar.ICEBERG, "4.0.0", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"),
        (TableJar.HUDI, "3.5.3", "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"),
    ],
)
def test_jar_matches_the_minor_version_of_spark(
    jar: TableJar, version: str, coordinates: str
) -> None:
    assert jar_of(jar, version) == coordinates
    assert coordinates in hint_of(jar, version)


@pytest.mark.parametrize(
    ("jar", "version", "told"),
    [
        (
            TableJar.ICEBERG,
            "4.3.0",
            "jar of Iceberg .* only with Spark 3.5 and 4.0",
        ),
        (TableJar.ICEBERG, "4.1.4", "only with Spark 3.5 and 4.0"),
        (TableJar.KAFKA, "3.4.4", "Spark's Kafka source .* only with Spark 3.5 and 4.0"),
        (TableJar.HUDI, "4.0.0", "only with Spark 3.5. Install"),
    ],
)
def test_error_for_an_unknown_spark_version_names_the_known_ones(
    jar: TableJar, version: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"Spark {re.escape(version)}: .*{told}"):
        jar_of(jar, version)
    assert "spark.jars.packages" in hint_of(jar, version)
