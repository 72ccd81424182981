"""The Kafka endpoint in the chart: options, memory, probes, groups, network and monitoring."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sidetier.config.units import parse_size
from sidetier.endpoint.connection import _TLS_PIECE as TLS_PIECE
from sidetier.endpoint.connection import (
    ANSWER_MEMORY,
    ENTRY_MEMORY,
    REQUEST_MEMORY,
    SMALL_REQUEST,
)
from sidetier.endpoint.groups.coordinator import CoordinatorSettings
from sidetier.endpoint.idle_polls import _MAX_BYTES as IDLE_BYTES
from sidetier.endpoint.service import DEFAULT_MEMORY
from tests.harness.chart import CHART, Manifest, manifests, one, rendered, template
from tests.harness.parsed import options_of
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

VALUES = CHART / "ci" / "serve-values.yaml"
NAME = "t-sidetier-serve"
PROCESS_BYTES = 176 << 20
"""Of the process with Arrow and pandas, as docs/serve.md has it."""
THREAD_BYTES, TLS_BYTES = 96 << 10, 64 << 10
"""Of a connection besides its buffers: 34 KiB were measured, and 110 KiB with a request of 60 KiB,
because a buffer grows by more than it needs.
"""
LIVE_BYTES = 128 << 20
"""Topics and connections of the live cluster, as docs/serve.md has it."""
OPEN: dict[str, Any] = {
    "mode": "jobs",
    "config": {
        "cluster": {"name": "prod-a"},
        "log_dirs": ["/data"],
        "storage": {"url": "s3://bucket/kafka"},
    },
    "image": {"repository": "registry.example.com/sidetier-consumer"},
    "serve": {"enabled": True, "insecure": True},
}
"""The fewest values that run an endpoint."""


def objects(directory: Path, **serve: object) -> list[Manifest]:
    """What these values of `serve` over `OPEN` create."""
    ran = template(merged(OPEN, {"serve": serve}), directory)
    assert ran.code == 0, ran.err
    return manifests(ran.out)


def deployment(found: list[Manifest]) -> Manifest:
    spec: Manifest = one(found, "Deployment", NAME)["spec"]
    return spec


def container(found: list[Manifest]) -> Manifest:
    (only,) = deployment(found)["template"]["spec"]["containers"]
    return dict(only)


def option(args: list[str], name: str) -> str:
    return args[args.index(name) + 1]


def test_pods_run_serve_at_every_address_and_advertise_the_service(tmp_path: Path) -> None:
    found = objects(tmp_path)
    options = options_of(container(found)["args"])
    assert options["--listen"] == ("::", 9092)
    assert options["--advertise"] == (f"{NAME}.kafka.svc", 9092)
    assert options["--memory"] == 256 << 20
    assert (options["--max-connections"], options["--metrics-port"]) == (1000, 9108)
    assert options["--insecure"] is True
    service = one(found, "Service", NAME)["spec"]
    assert service["type"] == "ClusterIP"
    assert service["ports"][0]["port"] == options["--advertise"][1]
    labels = deployment(found)["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == options["--listen"][1]
    assert not {o["kind"] for o in found} & {"HorizontalPodAutoscaler", "PodDisruptionBudget"}


def test_live_cluster_tls_users_and_rates_become_options() -> None:
    found = rendered(VALUES)
    args = container(found)["args"]
    mounts = {m["name"]: m["mountPath"] for m in container(found)["volumeMounts"]}
    assert option(args, "--advertise") == "kafka-log.example.com:9094"
    assert option(args, "--live") == "kafka-0.kafka:9093,kafka-1.kafka:9093"
    assert option(args, "--live-properties") == f"{mounts['live']}/client.properties"
    assert option(args, "--live-window") == "6h"
    assert option(args, "--prefer") == "audit[.].*=store"
    assert "--groups" not in args, "the live cluster keeps the groups"
    assert option(args, "--tls-certificate") == f"{mounts['tls']}/tls.crt"
    assert option(args, "--tls-key") == f"{mounts['tls']}/tls.key"
    assert option(args, "--tls-client-ca") == f"{mounts['tls']}/ca.crt"
    assert option(args, "--users") == f"{mounts['users']}/users.yaml"
    assert option(args, "--max-bytes-per-second") == "200MiB"
    assert "--insecure" not in args
    volumes = deployment(found)["template"]["spec"]["volumes"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in volumes if "secret" in v}
    assert secrets == {
        "live": "kafka-log-live",
        "tls": "kafka-log-tls",
        "users": "kafka-log-users",
    }


def test_live_cluster_can_be_another_one_than_that_of_the_groups(tmp_path: Path) -> None:
    found = objects(
        tmp_path,
        live={"bootstrapServers": "kafka:9092", "prefer": ["a=2h", "store"]},
        groups={"mode": "relay", "bootstrapServers": "groups:9092", "propertiesSecret": "s"},
    )
    options = options_of(container(found)["args"])
    assert options["--live"] == "kafka:9092"
    assert [window for _, window in options["--prefer"]] == [7200, 0]
    assert options["--live-properties"] is None
    assert options["--groups"] == "relay=groups:9092"
    mounts = {m["name"]: m["mountPath"] for m in container(found)["volumeMounts"]}
    assert str(options["--groups-properties"]) == f"{mounts['groups']}/client.properties"


def test_local_groups_never_have_two_coordinators(tmp_path: Path) -> None:
    found = objects(tmp_path, groups={"mode": "local"}, extraArgs=["--max-connections", "5"])
    args = container(found)["args"]
    assert option(args, "--groups") == "local"
    assert args[-2:] == ["--max-connections", "5"]
    assert deployment(found)["strategy"] == {"type": "Recreate"}
    update = deployment(objects(tmp_path))["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize(
    ("memory", "usual"), [("16MiB", "272Mi"), ("256MiB", "512Mi"), ("3GiB", "3328Mi")]
)
def test_memory_usualfollows_the_block_cache(memory: str, usual: str, tmp_path: Path) -> None:
    resources = container(objects(tmp_path, memory=memory))["resources"]
    assert resources["requests"]["memory"] == usual
    given = {"limits": {"memory": "1Gi"}}
    assert container(objects(tmp_path, resources=given))["resources"] == given


@pytest.mark.parametrize(
    ("memory", "connections", "tls", "groups", "live"),
    [
        ("256MiB", 1000, "", "none", ""),
        ("256MiB", 1000, "a-secret", "", "kafka:9092"),
        ("1GiB", 50, "a-secret", "local", ""),
        ("1GiB", 50, "", "local", "kafka:9092"),
    ],
)
def test_memory_limit_is_the_sum_of_all_bounds(
    memory: str, connections: int, tls: str, groups: str, live: str, tmp_path: Path
) -> None:
    found = objects(
        tmp_path,
        memory=memory,
        maxConnections=connections,
        tls={"secretName": tls},
        groups={"mode": groups},
        live={"bootstrapServers": live},
    )
    limit = container(found)["resources"]["limits"]["memory"]
    connection = SMALL_REQUEST + IDLE_BYTES + THREAD_BYTES
    if tls:
        connection += TLS_BYTES + TLS_PIECE
    most = (
        PROCESS_BYTES
        + parse_size(memory)
        # Decoded, a request takes twice its bytes, besides its entries; the bytes stay meanwhile.
        + 3 * REQUEST_MEMORY
        + ENTRY_MEMORY
        + ANSWER_MEMORY
        # Searches for a timestamp; those of the default memory are in the process's bytes.
        + max(parse_size(memory) - DEFAULT_MEMORY, 0) // 4
        + connections * connection
        + (CoordinatorSettings().memory if groups == "local" else 0)
        + (parse_size(memory) // 4 + LIVE_BYTES if live else 0)
    )
    assert limit == f"{-(-most >> 20)}Mi"


def test_probes_ask_the_metrics_port(tmp_path: Path) -> None:
    serve = container(objects(tmp_path))
    for kind, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert serve[kind]["httpGet"] == {"path": path, "port": "serve-metrics"}
    assert serve["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "serve-metrics"}


def test_pod_has_time_for_its_pause_and_its_answers(tmp_path: Path) -> None:
    found = objects(tmp_path)
    (_, pause) = container(found)["lifecycle"]["preStop"]["exec"]["command"]
    spec = deployment(found)["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= int(pause) + 5 + 5  # `ServerSettings.drain`


def test_several_pods_have_a_disruption_budget_and_may_be_scaled(tmp_path: Path) -> None:
    found = objects(tmp_path, replicas=3)
    labels = deployment(found)["template"]["metadata"]["labels"]
    assert deployment(found)["replicas"] == 3
    budget = one(found, "PodDisruptionBudget", NAME)["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= labels.items()

    found = objects(tmp_path, autoscaling={"enabled": True})
    assert "replicas" not in deployment(found)  # an upgrade must not undo the scaling
    scaler = one(found, "HorizontalPodAutoscaler", NAME)["spec"]
    assert scaler["scaleTargetRef"]["name"] == NAME
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    assert container(found)["resources"]["requests"]["cpu"], "its share is measured"
    one(found, "PodDisruptionBudget", NAME)


@pytest.mark.parametrize(
    "resources", [{"limits": {"memory": "1Gi"}}, {"requests": {"memory": "1Gi"}}]
)
def test_autoscaling_needs_a_cpu_request(resources: dict[str, Any], tmp_path: Path) -> None:
    serve: dict[str, Any] = {"autoscaling": {"enabled": True}, "resources": resources}
    ran = template(merged(OPEN, {"serve": serve}), tmp_path)
    assert ran.code != 0
    assert "serve.resources has no requests.cpu" in ran.err
    serve["resources"] = {"requests": {"cpu": "1"}}
    assert template(merged(OPEN, {"serve": serve}), tmp_path).code == 0


def test_service_can_have_both_ip_families(tmp_path: Path) -> None:
    assert "ipFamilyPolicy" not in one(objects(tmp_path), "Service", NAME)["spec"]
    found = objects(tmp_path, service={"ipFamilyPolicy": "PreferDualStack"})
    assert one(found, "Service", NAME)["spec"]["ipFamilyPolicy"] == "PreferDualStack"


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_prometheus_discovers_the_pods(kind: str, tmp_path: Path) -> None:
    values = {**OPEN, kind: {"enabled": True}, "service": {"enabled": True}}
    ran = template(values, tmp_path)
    assert ran.code == 0, ran.err
    found = manifests(ran.out)
    monitor = one(found, "PodMonitor", NAME)["spec"]
    labels = deployment(found)["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    port = monitor["podMetricsEndpoints"][0]["port"]
    assert port in {p["name"] for p in container(found)["ports"]}


def test_network_policy_admits_clients_and_prometheus_each_to_its_port() -> None:
    found = rendered(VALUES)
    policy = one(found, "NetworkPolicy", NAME)["spec"]
    labels = deployment(found)["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    sources = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    given = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    assert sources == {
        9094: given["serve"]["ingressFrom"],
        9108: given["networkPolicy"]["ingressFrom"],
    }
