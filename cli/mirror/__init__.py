"""Common parts of `sidetier mirror` and `sidetier restore`."""
