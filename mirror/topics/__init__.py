"""The topics of a mirror: selection, names, checks, creation, settings and ACLs."""
