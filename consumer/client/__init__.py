"""`TieredConsumer`: the face of `confluent_kafka.Consumer` over Kafka and the store."""
