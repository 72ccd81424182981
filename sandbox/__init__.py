"""Real servers on this machine, for the demo and the tests: Java, Kafka, ZooKeeper, an S3 server."""
