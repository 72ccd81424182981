"""Spark integration: archived records as DataFrames, on top of planning and reading."""
