"""The configuration: one frozen model per part; unknown keys are refused.

Durations are seconds, sizes are bytes; both may be written with a unit (`30s`, `5m`, `16MiB`).
"""
