"""The forms of files: Parquet, JSON lines, Avro containers, raw bytes."""
