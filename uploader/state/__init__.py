"""The state of a partition: events change it, and say what is to be done."""
