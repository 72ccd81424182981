"""Exports to files, with the names and directories of Confluent's S3 sink connector."""
