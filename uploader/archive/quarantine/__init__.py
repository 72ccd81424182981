"""Moving a part of an archive, or all of it, out of the way: quarantine and retirement."""
