"""Leadership in ZooKeeper mode: kazoo watches on topics, partitions and their state."""
