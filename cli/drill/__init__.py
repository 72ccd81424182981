"""`sidetier drill`: restore a sample of the archive, and compare it."""
