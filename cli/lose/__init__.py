"""`sidetier can-i-lose`: facts of each partition on a broker, and what would be lost."""
