"""The files of the status page: read once, compressed once, and the same until the next version."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads its own files and calls its own server, and nothing else. No inline script runs:
text that becomes HTML by mistake can do nothing.
"""
_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the status page. `etag` identifies its contents."""

    content_type: str
    body: bytes
    compressed: bytes
    etag: str


def read_static_files() -> Mapping[str, StaticFile]:
    """Read the files of the status page, by their path on the server."""
    folder = files("sidetier.telemetry") / "web"
    return {
        path: _read((folder / name).read_bytes(), content_type)
        for path, (name, content_type) in _FILES.items()
    }


def _read(body: bytes, content_type: str) -> StaticFile:
    # Weak, because the compressed body has the same.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StaticFile(content_type, body, gzip.compress(body, mtime=0), etag)
