"""What is stored of one partition: the one place that reads it, and the questions it answers."""
