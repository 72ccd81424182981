"""`sidetier demo`: a real broker and a sidecar on this machine, and a check of the archive."""
