"""The command line: one file per command, one file that wires adapters to ports."""
