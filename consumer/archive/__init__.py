"""A partition's archive as a reader sees it: segments, bounds, holes, and where an offset lies."""
