"""Build the files of a release, and check them: `make release`, `make release-check`."""
