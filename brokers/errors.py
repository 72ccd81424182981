"""Errors while servers are fetched and started on this machine."""

from sidetier.segments.errors import SidetierError


class LocalServerError(SidetierError):
    """A server on this machine could not be fetched, started or reached."""


class JavaMissingError(LocalServerError):
    """No Java 17 or newer was found; the message explains how to install one."""


class FetchError(LocalServerError):
    """A download failed, or the tool for it is missing."""


class ServerDiedError(LocalServerError):
    """A server ended by itself; the message ends with the tail of its log."""


class ServerTimeoutError(LocalServerError):
    """A running server was not ready in time; the message ends with the tail of its log."""
