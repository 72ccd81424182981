"""Decoders of values: bytes, text, and JSON, Avro or Protobuf with a schema."""
