"""Archived records as DataFrames: thin faces of Spark on planning and reading."""
