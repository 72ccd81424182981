"""Kafka's protocol over TCP: connections, routing, and record batches that pass unchanged.

Start with `cluster.Cluster` for requests of ordinary clients, and with `connection.Connection` and
`record_requests` for Produce and Fetch of raw record batches.
"""
