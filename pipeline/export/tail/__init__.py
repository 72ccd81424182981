"""Records that only the brokers have yet: where they lie behind the archive, and reading them."""
