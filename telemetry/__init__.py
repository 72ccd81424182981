"""Metrics, logs, health and the status page."""
