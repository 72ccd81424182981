"""A read-only Kafka endpoint over an archive (`sidetier serve`)."""
