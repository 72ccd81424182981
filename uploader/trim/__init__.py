"""Local retention: delete archived records at the start of the logs of led partitions."""
