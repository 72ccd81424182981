"""Who leads what: the port and its KRaft, ZooKeeper and static adapters."""
