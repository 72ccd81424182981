"""Files as Confluent's S3 sink lays them out: partitioners, rotation, formats, writing."""
