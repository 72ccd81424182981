"""What the benchmarks share: inputs, processes to measure, stores, and the form of results."""
