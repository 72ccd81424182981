"""Metrics, logs, health checks and the status page."""
