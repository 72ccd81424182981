"""The archive of a partition on the store: reading, preparing, committing, recording gaps."""
