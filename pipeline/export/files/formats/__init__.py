"""File formats: Parquet, JSON lines, Avro container files, raw bytes."""
