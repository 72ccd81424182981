"""Real servers on this machine, for the demo and the tests: Kafka, ZooKeeper, S3, Azure, HDFS."""
