"""Generators of the reference pages in `docs/`, which `make docs` runs."""
