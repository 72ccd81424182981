"""What a follower does, so that one dead sidecar loses nothing."""
