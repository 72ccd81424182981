"""Data pipeline: archived segments as Spark DataFrames, and exactly-once exports to tables."""
