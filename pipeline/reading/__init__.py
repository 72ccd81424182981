"""What one task does: the records of a split, as Arrow batches. No Spark."""
