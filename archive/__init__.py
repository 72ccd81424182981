"""Reading an archive: what it holds, where an offset is stored, and how ranges are fetched ahead
and decoded (`reader`).

The package reads one partition at a time and needs neither Kafka nor Spark.
"""
