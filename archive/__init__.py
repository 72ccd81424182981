"""What is stored, for those who read it: what an archive holds, where an offset lies, and (in
`reading`) ranges fetched ahead and decoded. A partition at a time, without Kafka and without Spark.
"""
