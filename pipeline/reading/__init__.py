"""Work of one task: the records of a split as Arrow batches. Independent of Spark."""
