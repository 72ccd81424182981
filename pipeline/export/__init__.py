"""Exactly-once exports of archived records. Each export keeps its state beside its output."""
