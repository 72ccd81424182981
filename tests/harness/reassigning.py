"""Reassigns one partition in a separate process: `reassigning.py BROKERS TOPIC PARTITION 1,2,3`.

kafka-python leaves sockets open to brokers that it failed to reach; here they end with the process.
"""

import sys

from kafka import KafkaAdminClient, TopicPartition


def main(bootstrap: str, topic: str, partition: str, replicas: str) -> None:
    """Request the reassignment; exit with the cluster's reason if it refuses."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        moved = {
            TopicPartition(topic, int(partition)): [int(broker) for broker in replicas.split(",")]
        }
        outcome = admin.alter_partition_reassignments(moved)
    finally:
        admin.close()
    if any(outcome.values()):
        sys.exit(f"the reassignment was refused: {outcome}")


if __name__ == "__main__":
    main(*sys.argv[1:])
