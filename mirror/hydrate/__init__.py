"""Place archived segments into the log dirs of an empty cluster, with identical offsets."""
