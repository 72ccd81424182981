"""What would be lost with a broker: facts of each partition on it, and a pure decision."""
