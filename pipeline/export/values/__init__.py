"""Decoding of record keys and values: formats, schemas, and the schema registry."""
