"""Engines that run the tasks of an export: in this process, or on Spark."""
