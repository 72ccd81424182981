"""Temporary Kafka brokers on this machine, for `sidetier drill`."""
