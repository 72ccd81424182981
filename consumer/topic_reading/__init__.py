"""Reading a range of one topic, from the archive alone or from Kafka and the archive as one log."""
