"""Upload of segments: the queue, reading and verifying, and conditional puts."""
