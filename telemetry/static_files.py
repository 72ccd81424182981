"""The files of the status page: each is read and compressed when it is first asked for.

Many sidecars run for months before anybody looks at the page. Until then the files take no memory.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
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
PATHS: Final = frozenset(_FILES)
"""The paths of the files on the server."""
_FOLDER: Final = Path(__file__).with_name("web")


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the status page. `etag` identifies its contents."""

    content_type: str
    body: bytes
    compressed: bytes
    etag: str


@cache
def static_file(path: str) -> StaticFile:
    """Return the file of the status page with this path on the server, one of `PATHS`."""
    name, content_type = _FILES[path]
    # Not `importlib.resources`: it takes 60 KB, and the package is installed as files anyway.
    body = (_FOLDER / name).read_bytes()
    # Weak, because the compressed body has the same.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StaticFile(content_type, body, gzip.compress(body, mtime=0), etag)
