"""One segment on its way: queued, read and verified, stored so that two leaders cannot hurt it."""
