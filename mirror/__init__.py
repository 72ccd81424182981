"""Copy topics from a cluster's archive and brokers into another cluster."""
