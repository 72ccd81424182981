"""Exports of archived records, each exactly once: the state is with what was written."""
