"""The documentation site: `make docs-site`."""
