"""Real servers on this machine, for the demo and the tests: Kafka, ZooKeeper, an S3 server."""
