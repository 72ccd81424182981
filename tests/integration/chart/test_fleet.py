"""The page of all sidecars in the chart: its address of the sidecars, login, probes and network."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, Manifest, manifests, one, rendered, template
from tests.harness.parsed import options_of
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

VALUES = CHART / "ci" / "fleet-values.yaml"
NAME = "t-sidetier-fleet"
GIVEN: dict[str, Any] = yaml.safe_load(VALUES.read_text(encoding="utf-8"))


def objects(directory: Path, changes: dict[str, Any]) -> list[Manifest]:
    """What the values of the file, with these changes, create."""
    ran = template(merged(GIVEN, changes), directory)
    assert ran.code == 0, ran.err
    return manifests(ran.out)


def refusal(directory: Path, changes: dict[str, Any]) -> str:
    ran = template(merged(GIVEN, changes), directory)
    assert ran.code != 0
    return ran.err


def container(found: list[Manifest]) -> Manifest:
    (only,) = one(found, "Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    return dict(only)


def configuration(found: list[Manifest]) -> dict[str, Any]:
    text = one(found, "ConfigMap", "t-sidetier")["data"]["sidetier.yaml"]
    return dict(yaml.safe_load(text))


def test_page_asks_the_headless_service_of_the_sidecars(tmp_path: Path) -> None:
    found = objects(tmp_path, {"config": {"http": {"port": 9300}}})
    options = options_of(container(found)["args"])
    assert options["--listen"] == ("::", 9109)
    name, namespace, _svc, port = options["--dns"].replace(":", ".").split(".")
    assert not options["--insecure"]
    sidecars = one(found, "Service", name)
    assert (namespace, int(port)) == ("kafka", sidecars["spec"]["ports"][0]["port"])
    assert sidecars["spec"]["clusterIP"] == "None"
    assert sidecars["spec"]["publishNotReadyAddresses"] is True
    agents = one(found, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert sidecars["spec"]["selector"].items() <= agents.items()
    page = one(found, "Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    assert not sidecars["spec"]["selector"].items() <= page.items(), "the page is no sidecar"


def test_service_leads_to_the_page(tmp_path: Path) -> None:
    found = objects(tmp_path, {"fleet": {"port": 8080}})
    service = one(found, "Service", NAME)
    assert service["metadata"]["annotations"] == GIVEN["fleet"]["service"]["annotations"]
    assert service["spec"]["ports"][0]["port"] == 8080
    labels = one(found, "Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    listens = options_of(container(found)["args"])["--listen"]
    assert ports[service["spec"]["ports"][0]["targetPort"]] == listens[1] == 8080


def test_probes_ask_the_page_itself() -> None:
    for kind, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        probe = container(rendered(VALUES))[kind]
        assert probe["httpGet"] == {"path": path, "port": "fleet-http"}


def test_configured_sidecars_are_asked_instead(tmp_path: Path) -> None:
    """Such as those of another release: this one has none."""
    jobs = {"mode": "jobs", "config": {"fleet": {"dns": "sidetier.kafka.svc:9108"}}}
    found = objects(tmp_path, jobs)
    assert "--dns" not in container(found)["args"]
    config = configuration(found)
    assert config["fleet"] == {"dns": "sidetier.kafka.svc:9108"}
    assert config["http"]["runbook_url"] == "https://runbooks.example.com/sidetier"
    assert "host" not in config["http"]
    assert [o["metadata"]["name"] for o in found if o["kind"] == "Service"] == [NAME]
    assert "which has no sidecars" in refusal(tmp_path, {"mode": "jobs"})


def test_page_without_a_login_is_refused(tmp_path: Path) -> None:
    open_ = {"config": {"http": {"bearer_token": None}}}
    assert "without config.http.bearer_token" in refusal(tmp_path, open_)
    args = container(objects(tmp_path, {**open_, "fleet": {"insecure": True}}))["args"]
    assert options_of(args)["--insecure"]


def test_page_in_mode_sidecar_needs_the_labels_of_the_brokers(tmp_path: Path) -> None:
    changes = {"mode": "sidecar", "networkPolicy": {"enabled": False}}
    values = {
        **merged(GIVEN, changes),
        "logDirVolumes": [{"name": "data", "mountPath": "/var/lib/kafka/data"}],
    }
    ran = template(values, tmp_path)
    assert ran.code != 0
    assert "sidecar.podSelector is required for podMonitor, service and fleet" in ran.err
    ran = template({**values, "sidecar": {"podSelector": {"app": "kafka"}}}, tmp_path)
    assert ran.code == 0, ran.err
    service = one(manifests(ran.out), "Service", "t-sidetier")
    assert service["spec"]["selector"] == {"app": "kafka"}


def test_page_and_sidecars_have_the_runbook_of_the_alerts(tmp_path: Path) -> None:
    url = configuration(rendered(VALUES))["http"]["runbook_url"]
    assert url == "https://runbooks.example.com/sidetier"
    own = {"config": {"http": {"runbook_url": "https://wiki.example.com"}}}
    config = configuration(objects(tmp_path, own))
    assert config["http"]["runbook_url"] == "https://wiki.example.com"
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    default = configuration(objects(tmp_path, {"prometheusRule": {"runbookUrl": ""}}))
    assert default["http"]["runbook_url"] == f"{chart['home']}/blob/main/docs/runbook"


def test_network_policies_admit_the_page_to_the_sidecars(tmp_path: Path) -> None:
    found = rendered(VALUES)
    labels = one(found, "Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    page = one(found, "NetworkPolicy", NAME)["spec"]
    assert page["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = page["ingress"]
    assert rule == {
        "ports": [{"port": 9109, "protocol": "TCP"}],
        "from": GIVEN["fleet"]["ingressFrom"],
    }
    (rule,) = one(found, "NetworkPolicy", "t-sidetier")["spec"]["ingress"]
    *others, pod = rule["from"]
    assert others == GIVEN["networkPolicy"]["ingressFrom"]
    assert pod["podSelector"]["matchLabels"].items() <= labels.items()
    open_ = objects(tmp_path, {"networkPolicy": {"ingressFrom": []}})
    (rule,) = one(open_, "NetworkPolicy", "t-sidetier")["spec"]["ingress"]
    assert "from" not in rule, "everybody may ask the sidecars, so the page may, too"
