"""`sidetier consume`: positions, two record sources, output formats, and the read loop."""
