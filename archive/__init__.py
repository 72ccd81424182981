"""Reading an archive: its segments and gaps, the position of an offset, and the fetching and
decoding of ranges (`reader`).

The package reads one partition at a time and needs neither Kafka nor Spark.
"""
