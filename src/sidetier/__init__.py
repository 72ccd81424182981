"""Sidetier: tiered storage for Apache Kafka that runs beside the broker."""

__version__ = "0.1.0"
