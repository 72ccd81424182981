"""Where tasks are carried out: in this process, or on Spark."""
