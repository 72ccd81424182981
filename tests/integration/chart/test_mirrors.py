"""Mirrors in the chart: names of workers, and changes that affect all workers at once."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, Manifest, manifests, one, rendered, template
from tests.harness.parsed import options_of
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

VALUES = CHART / "ci" / "mirror-values.yaml"


def given(**changes: object) -> dict[str, Any]:
    """The values with these changes to the mirror `dr` only."""
    values: dict[str, Any] = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    values["mirrors"] = {"dr": merged(values["mirrors"]["dr"], changes)}
    return values


def stateful_set(values: dict[str, Any], directory: Path) -> Manifest:
    ran = template(values, directory)
    assert ran.code == 0, ran.err
    return one(manifests(ran.out), "StatefulSet")


def container(found: Manifest) -> Manifest:
    (only,) = found["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_worker_is_named_like_its_pod(tmp_path: Path) -> None:
    found = stateful_set(given(), tmp_path)
    assert found["spec"]["replicas"] == 3
    assert found["spec"]["podManagementPolicy"] == "Parallel"
    mirror = container(found)
    (variable,) = mirror["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    options = options_of(mirror["args"])
    assert options["--worker"] == f"$({variable['name']})"
    assert options["--name"] == "dr"
    assert options["--topic"] == ("orders.*", "payments")
    assert options["--exclude"] == ("orders-test.*",)
    assert options["--metrics-port"] == 9108
    assert "sasl.password=file:/etc/sidetier-target/password" in options["--target"]
    assert stateful_set(given(workers=0), tmp_path)["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"topics": ["orders.*"]}, True),
        ({"exclude": []}, True),
        ({"rename": ["(.*)=a.\\1"]}, True),
        ({"args": []}, True),
        ({"image": {"tag": "0.2.0"}}, True),
        ({"workers": 5}, False),
        ({"target": {"sasl.username": "another"}}, False),
        ({"resources": {"limits": {"memory": "2Gi"}}}, False),
    ],
    ids=str,
)
def test_workers_with_different_topics_are_never_mixed(
    change: dict[str, Any], *, replaces: bool, tmp_path: Path
) -> None:
    """A rolling update would wait for a new worker, which waits until the old ones are gone."""
    before = stateful_set(given(), tmp_path)["metadata"]["name"]
    after = stateful_set(given(**change), tmp_path)["metadata"]["name"]
    assert (after != before) is replaces


def test_secrets_are_mounted_and_never_in_clear_text(tmp_path: Path) -> None:
    found = stateful_set(given(), tmp_path)
    (volume,) = [v for v in found["spec"]["template"]["spec"]["volumes"] if "secret" in v]
    assert volume["secret"]["secretName"] == "dr-kafka"
    (mount,) = [m for m in container(found)["volumeMounts"] if m["name"] == volume["name"]]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/sidetier-target", True)

    ran = template(given(target={"sasl.password": "hunter2"}), tmp_path)
    assert ran.code != 0
    assert "sasl.password" in ran.err


def test_too_long_name_is_refused(tmp_path: Path) -> None:
    values = given()
    values["mirrors"] = {"a" * 40: values["mirrors"]["dr"]}
    ran = template(values, tmp_path)
    assert ran.code != 0
    assert "Kubernetes takes 52 characters: choose a shorter name" in ran.err


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor"])
def test_prometheus_discovers_the_pods_of_every_mirror(kind: str, tmp_path: Path) -> None:
    """Mirrors have no Service, so a PodMonitor selects them in either case."""
    values: dict[str, Any] = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    values |= {"podMonitor": {"enabled": False}, "service": {"enabled": True}}
    values[kind] = {"enabled": True, "labels": {"release": "prometheus"}}
    ran = template(values, tmp_path)
    assert ran.code == 0, ran.err
    monitor = one(manifests(ran.out), "PodMonitor", "t-sidetier-mirrors")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (matched,) = monitor["spec"]["selector"]["matchExpressions"]
    found = [o for o in manifests(ran.out) if o["kind"] == "StatefulSet"]
    assert len(found) == 2
    for labels in (o["spec"]["template"]["metadata"]["labels"] for o in found):
        assert labels[matched["key"]] in matched["values"]
    port = monitor["spec"]["podMetricsEndpoints"][0]["port"]
    assert {p["name"] for o in found for p in container(o)["ports"]} == {port}


def test_network_policy_opens_the_metrics_port_of_every_mirror(tmp_path: Path) -> None:
    values: dict[str, Any] = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    values["networkPolicy"] = {"enabled": True, "ingressFrom": peers, "egress": [{}]}
    ran = template(values, tmp_path)
    assert ran.code == 0, ran.err
    policy = one(manifests(ran.out), "NetworkPolicy", "t-sidetier-mirrors")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    selector = policy["spec"]["podSelector"]
    (matched,) = selector["matchExpressions"]
    found = [o for o in manifests(ran.out) if o["kind"] == "StatefulSet"]
    assert len(found) == 2
    for pod in (o["spec"]["template"] for o in found):
        labels = pod["metadata"]["labels"]
        assert selector["matchLabels"].items() <= labels.items()
        assert labels[matched["key"]] in matched["values"]
    (rule,) = policy["spec"]["ingress"]
    opened = {port["port"] for port in rule["ports"]}
    assert opened == {port["containerPort"] for o in found for port in container(o)["ports"]}
    assert rule["from"] == peers


def test_mirror_with_its_source_in_a_secret_reads_it_there() -> None:
    found = one(rendered(VALUES), "StatefulSet", _name_of("from-eu"))
    options = options_of(container(found)["args"])
    assert "ssl.key.password=env:EU_KEY_PASSWORD" in options["--source"]
    assert options["--rename"] == ("(.*)=eu.\\1",)
    assert options["--no-archive"] is True
    mounts = {mount["name"]: mount["mountPath"] for mount in container(found)["volumeMounts"]}
    assert mounts["source"] == "/etc/sidetier-source"


def _name_of(mirror: str) -> str:
    names = [o["metadata"]["name"] for o in rendered(VALUES) if o["kind"] == "StatefulSet"]
    (name,) = [name for name in names if f"-mirror-{mirror}-" in name]
    return str(name)
