"""The tiered consumer: Kafka and the store read as one log."""
