"""Jars that Spark needs beside its own, for the tests and the benchmarks.

Each is fetched without dependencies: PySpark contains the others, and further versions of them
would be mixed in. The versions of each set fit together, and all are in Maven Central.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidetier.brokers.jars import Artifact, Distribution, jars_of


@dataclass(frozen=True, slots=True)
class SparkJars:
    """A version of Spark, and the jars that are fetched for it."""

    version: str
    distributions: tuple[Distribution, ...]


def _alone(group: str, name: str, version: str) -> Artifact:
    return Artifact(group, name, version, alone=True)


def _kafka_source(scala: str, spark: str, clients: str, pool: str) -> Distribution:
    """Return Spark's own Kafka source, and its dependencies that PySpark lacks."""
    return Distribution(
        f"spark-{spark}-kafka",
        (
            _alone("org.apache.spark", f"spark-sql-kafka-0-10_{scala}", spark),
            _alone("org.apache.spark", f"spark-token-provider-kafka-0-10_{scala}", spark),
            _alone("org.apache.kafka", "kafka-clients", clients),
            _alone("org.apache.commons", "commons-pool2", pool),
        ),
    )


KAFKA_4_0: Final = _kafka_source("2.13", "4.0.0", "3.9.0", "2.12.0")
KAFKA_3_5: Final = _kafka_source("2.12", "3.5.3", "3.4.1", "2.11.1")
ICEBERG_4_0: Final = Distribution(
    "spark-4.0-iceberg-1.10.0",
    (_alone("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.10.0"),),
)
ICEBERG_3_5: Final = Distribution(
    "spark-3.5-iceberg-1.12.0",
    (_alone("org.apache.iceberg", "iceberg-spark-runtime-3.5_2.12", "1.12.0"),),
)
HUDI_3_5: Final = Distribution(
    "spark-3.5-hudi-1.2.0", (_alone("org.apache.hudi", "hudi-spark3.5-bundle_2.12", "1.2.0"),)
)
ICEBERG_ON_S3: Final = Distribution(
    "spark-4.0-iceberg-s3-1.10.0",
    (
        _alone("org.apache.iceberg", "iceberg-aws-bundle", "1.10.0"),
        _alone("org.xerial", "sqlite-jdbc", "3.46.1.3"),  # JDBC driver of an Iceberg catalog
    ),
)
S3A_3_3: Final = Distribution(
    "hadoop-3.3.4-s3a",
    (
        _alone("org.apache.hadoop", "hadoop-aws", "3.3.4"),
        *(
            _alone("com.amazonaws", name, "1.12.262")
            for name in (
                "aws-java-sdk-core",
                "aws-java-sdk-s3",
                "aws-java-sdk-sts",
                "aws-java-sdk-dynamodb",
            )
        ),
    ),
)
"""The 4 MB of Amazon's SDK that hadoop-aws uses; its own dependency is a bundle of 281 MB."""

SPARK_4_0: Final = SparkJars("4.0.0", (KAFKA_4_0, ICEBERG_4_0, ICEBERG_ON_S3))
SPARK_3_5: Final = SparkJars("3.5.3", (KAFKA_3_5, HUDI_3_5, ICEBERG_3_5, S3A_3_3))


def spark_jars(*distributions: Distribution, root: Path | None = None) -> str:
    """Return the jars of these distributions in the form of `spark.jars`; missing ones are fetched.

    Raises:
        FetchError: A download failed.
        JavaMissingError: No Java was found to run Ivy with.
    """
    folders = [jars_of(distribution, root=root) for distribution in distributions]
    return ",".join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))
