"""Values into columns: bytes, text, JSON with a schema, Avro in Confluent's wire format."""
