"""The part of a Kubernetes API server that a dry run of helm needs: kinds and ConfigMaps."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

DRY_RUN = ["--dry-run=client", "--disable-openapi-validation"]
"""Options of `helm install` that limit its requests to what this server has."""

_KINDS = {
    "v1": "configmaps/ConfigMap services/Service serviceaccounts/ServiceAccount pods/Pod",
    "apps/v1": "statefulsets/StatefulSet daemonsets/DaemonSet deployments/Deployment",
    "autoscaling/v2": "horizontalpodautoscalers/HorizontalPodAutoscaler",
    "policy/v1": "poddisruptionbudgets/PodDisruptionBudget",
    "batch/v1": "jobs/Job cronjobs/CronJob",
    "networking.k8s.io/v1": "networkpolicies/NetworkPolicy",
    "monitoring.coreos.com/v1": "podmonitors/PodMonitor servicemonitors/ServiceMonitor "
    "prometheusrules/PrometheusRule",
}


def _discovery() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/version", {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    yield "/api", {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    groups = []
    for version, kinds in _KINDS.items():
        resources = [
            {"name": plural, "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
            for plural, _, kind in (pair.partition("/") for pair in kinds.split())
        ]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        about = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
        yield path, {**about, "resources": resources}
        if "/" in version:
            name, _, number = version.partition("/")
            named = {"groupVersion": version, "version": number}
            group = {"name": name, "versions": [named]}
            groups.append({**group, "preferredVersion": named})
    yield "/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


_DISCOVERY = dict(_discovery())


@contextmanager
def kube_api(directory: Path, config_maps: Mapping[str, Mapping[str, Any]]) -> Iterator[Path]:
    """Yield a kubeconfig for a server with these ConfigMaps, by `namespace/name`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            _, _, name_path = path.partition("/api/v1/namespaces/")
            resource = _DISCOVERY.get(path) or config_maps.get(
                name_path.replace("/configmaps/", "/")
            )
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            body = json.dumps(resource or {**missing, "reason": "NotFound"}).encode()
            self.send_response(200 if resource else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

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
