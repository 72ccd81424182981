"""Formats of exported files."""
