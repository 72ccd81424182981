"""What the daemon runs on: an inbox and timers, threads, a clock."""
