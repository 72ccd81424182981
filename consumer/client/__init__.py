"""`TieredConsumer`: the API of `confluent_kafka.Consumer` over Kafka and the store."""
