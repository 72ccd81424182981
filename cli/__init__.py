"""Command line: one module for each command, and `wiring`, which connects adapters to ports."""
