#!/usr/bin/env python3
"""Exits with 0 if the sidecar in this container answers `/healthz` with status 200.

The script asks 127.0.0.1 on the port in SIDETIER_HTTP__PORT, else on the default port. It does not
read the configuration: if a file sets `http.port`, set the variable too.
"""

import http.client
import os
import sys

DEFAULT_PORT = 9108
TIMEOUT_SECONDS = 4.0


def main() -> int:
    """Ask once, and return the exit code."""
    port = int(os.environ.get("SIDETIER_HTTP__PORT", DEFAULT_PORT))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace").strip()
    except OSError as error:
        sys.stderr.write(f"http://127.0.0.1:{port}/healthz: {error}\n")
        return 1
    finally:
        connection.close()
    sys.stdout.write(f"{body}\n")
    return 0 if answer.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
