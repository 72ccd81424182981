"""Tools for development: real servers, the demo, and generators of files. Not in the wheel."""
