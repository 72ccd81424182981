"""`sidetier demo`: a real broker and a sidecar on this machine, and the proof of what is stored."""
