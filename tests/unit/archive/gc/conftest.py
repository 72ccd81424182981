"""A log dir and a store for each test."""

from tests.unit.uploader.conftest import log, log_dir, quick_gaps, site, store

__all__ = ["log", "log_dir", "quick_gaps", "site", "store"]
