"""Moving segments out of an archive: quarantine (a part) and retirement (all of it)."""
