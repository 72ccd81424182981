"""Leadership of partitions: the port and its KRaft, ZooKeeper and static adapters."""
