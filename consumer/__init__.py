"""Kafka consumer that reads a topic's log from the brokers and from the archive."""
