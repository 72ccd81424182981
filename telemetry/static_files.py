"""The files of the status pages: each is read and compressed when it is first asked for.

Many sidecars run for months before anybody looks at the page. Until then the files take no memory.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads its own files and calls its own server, and nothing else. No inline script runs:
text that becomes HTML by mistake can do nothing.
"""
PageName = Literal["partitions", "endpoint"]
"""The page of a sidecar or a fleet, and the one of an endpoint: `NAME.html` has its tables, and
`NAME.js` fills them.
"""
_TABLES: Final = b"<!-- tables -->\n"
"""The place of `NAME.html` in `page.html`."""
_HTML: Final = "text/html; charset=utf-8"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_SHARED: Final[Mapping[str, str]] = {
    "/page.css": "text/css; charset=utf-8",
    "/page.js": _SCRIPT,
    "/icon.svg": "image/svg+xml",
}
_FOLDER: Final = Path(__file__).with_name("web")


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the status page. `etag` identifies its contents."""

    content_type: str
    body: bytes
    compressed: bytes
    etag: str


def paths_of(page: PageName) -> frozenset[str]:
    """Return the paths of a page's files on the server."""
    return frozenset({"/", f"/{page}.js", *_SHARED})


@cache
def static_file(path: str, page: PageName) -> StaticFile:
    """Return the file of a page with this path on the server, one of `paths_of(page)`."""
    # Not `importlib.resources`: it takes 60 KB, and the package is installed as files anyway.
    if path == "/":
        tables = (_FOLDER / f"{page}.html").read_bytes()
        body = (_FOLDER / "page.html").read_bytes().replace(_TABLES, tables)
    else:
        body = (_FOLDER / path[1:]).read_bytes()
    content_type = _HTML if path == "/" else _SHARED.get(path, _SCRIPT)
    # Weak, because the compressed body has the same.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StaticFile(content_type, body, gzip.compress(body, mtime=0), etag)
