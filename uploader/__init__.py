"""The daemon: hints, listing, plan, pin, queue, upload, commit, supervise."""
