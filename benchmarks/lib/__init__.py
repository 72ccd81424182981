"""Shared code of the benchmarks: inputs, measured processes, stores, and the form of results."""
