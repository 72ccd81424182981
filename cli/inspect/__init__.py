"""Facts about a cluster, its archive and its sidecars, and what `explain`, `can-i-lose` and
`doctor` conclude from them.
"""
