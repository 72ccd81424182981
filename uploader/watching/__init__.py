"""What happens on the disk: file events as hints, the log dirs, small reads."""
