"""The data pipeline: archived segments as Spark DataFrames, and exactly-once tables from them."""
