"""The daemon's runtime: inbox and timers, worker threads, clocks."""
