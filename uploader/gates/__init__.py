"""What may be archived: committed, of a topic that is wanted, of one history with the archive."""
