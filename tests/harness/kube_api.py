"""As much of a Kubernetes API server as `helm --dry-run=server` asks: what there is, ConfigMaps."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

_CONFIG_MAPS = {
    "name": "configmaps",
    "singularName": "configmap",
    "namespaced": True,
    "kind": "ConfigMap",
    "verbs": ["get", "list"],
}
_DISCOVERY: dict[str, Any] = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "v1",
        "resources": [_CONFIG_MAPS],
    },
}


@contextmanager
def kube_api(directory: Path, config_maps: Mapping[str, Mapping[str, Any]]) -> Iterator[Path]:
    """A kubeconfig for a server with these ConfigMaps, by `namespace/name`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            _, _, rest = path.partition("/api/v1/namespaces/")
            found = _DISCOVERY.get(path) or config_maps.get(rest.replace("/configmaps/", "/"))
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            body = json.dumps(found or {**missing, "reason": "NotFound"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield _kubeconfig(directory / "kubeconfig", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _kubeconfig(path: Path, port: int) -> Path:
    name = {"name": "c"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**name, "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{**name, "user": {}}],
        "contexts": [{**name, "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    path.chmod(0o600)
    return path
