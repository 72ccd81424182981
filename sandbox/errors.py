"""What can go wrong while real servers are fetched and started on this machine."""

from sidetier.segments.errors import SidetierError


class SandboxError(SidetierError):
    """A server of the sandbox could not be fetched, started or reached; the text says which."""


class JavaMissingError(SandboxError):
    """No Java of version 17 or newer was found; the text says how to get one."""


class NodeMissingError(SandboxError):
    """Node.js or its npm was not found; the text says how to get them."""


class FetchError(SandboxError):
    """A download failed, or no tool is there that could make it."""


class ServerDiedError(SandboxError):
    """A server ended although nobody stopped it; the text ends with the tail of its log."""


class ServerTimeoutError(SandboxError):
    """A server lives but did not become ready in time; the text ends with the tail of its log."""
