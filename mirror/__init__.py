"""Copies of a cluster's topics: from its archive and its brokers into another cluster."""
