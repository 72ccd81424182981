"""A partition's archive on the store: read, prepared, committed, its gaps recorded."""
