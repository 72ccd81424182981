"""Values for all objects of the chart: labels, further objects, disruption budgets, links."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.chart.alerts import project_home
from tests.harness.chart import (
    CHART,
    CI_VALUES,
    NAMESPACE,
    RELEASE,
    Manifest,
    manifests,
    one,
    rendered,
    run_helm,
    template,
)
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HOME = project_home()
PAGES = f"{HOME}/blob/main/docs/runbook"

each_way = pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)


def given(name: str) -> dict[str, Any]:
    file = CHART / "ci" / f"{name}-values.yaml"
    values: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return values


def objects(name: str, more: Mapping[str, Any], directory: Path) -> list[Manifest]:
    ran = template(merged(given(name), more), directory)
    assert ran.code == 0, ran.err
    return manifests(ran.out)


def pod_labels(manifest: Manifest) -> dict[str, str] | None:
    """Labels of the pods that an object creates; None if it creates none."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    labels: dict[str, str] | None = spec.get("template", {}).get("metadata", {}).get("labels")
    return labels


@each_way
def test_common_labels_are_on_objects_and_pods_and_not_in_selectors(values: Path) -> None:
    labels = {"team": "streams", "app.kubernetes.io/part-of": "kafka"}
    words = ["--namespace", NAMESPACE, "--set-json", f"commonLabels={json.dumps(labels)}"]
    ran = run_helm("template", RELEASE, CHART, "--values", values, *words)
    assert ran.code == 0, ran.err
    for manifest in manifests(ran.out):
        assert labels.items() <= manifest["metadata"]["labels"].items()
        assert "helm.sh/chart" in manifest["metadata"]["labels"]
        on_pods = pod_labels(manifest)
        assert on_pods is None or labels.items() <= on_pods.items()
        selector = manifest.get("spec", {}).get("selector") or {}
        assert "app.kubernetes.io/part-of" not in selector.get("matchLabels", {})


def test_labels_of_one_object_override_common_labels(tmp_path: Path) -> None:
    more = {"commonLabels": {"release": "a", "team": "a"}, "podLabels": {"team": "pods"}}
    found = objects("node-agent", more, tmp_path)
    rule = one(found, "PrometheusRule")["metadata"]["labels"]
    assert (rule["release"], rule["team"]) == ("prometheus", "a")
    pods = pod_labels(one(found, "DaemonSet"))
    assert pods is not None
    assert (pods["release"], pods["team"]) == ("a", "pods")


def test_extra_objects_are_templates(tmp_path: Path) -> None:
    mapping = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": '{{ include "sidetier.fullname" . }}-mapping'},
        "data": {"cluster": "{{ .Values.config.cluster.name }}"},
    }
    text = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-text
  labels:
    {{- include "sidetier.labels" . | nindent 4 }}
"""
    found = objects("jobs", {"extraObjects": [mapping, text]}, tmp_path)
    assert one(found, "ConfigMap", f"{RELEASE}-sidetier-mapping")["data"] == {"cluster": "prod-a"}
    labels = one(found, "ConfigMap", f"{RELEASE}-text")["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == RELEASE


@pytest.mark.parametrize(
    ("name", "more", "budgets"),
    [
        ("mirror", {}, ["t-sidetier-mirror-dr"]),  # the other mirror has one worker
        ("kafka", {}, ["t-sidetier-kafka"]),
        ("kafka", {"kafka": {"replicas": 1}}, []),
        ("serve", {}, ["t-sidetier-serve"]),
        ("node-agent", {}, []),  # draining a node does not evict the pods of a DaemonSet
        ("sidecar", {}, []),  # the pods are the brokers'
    ],
    ids=str,
)
def test_each_group_of_pods_has_a_disruption_budget(
    name: str, more: dict[str, Any], budgets: list[str], tmp_path: Path
) -> None:
    found = objects(name, more, tmp_path)
    made = [o for o in found if o["kind"] == "PodDisruptionBudget"]
    assert [budget["metadata"]["name"] for budget in made] == budgets
    pods = [labels for o in found if o["kind"] != "Job" and (labels := pod_labels(o))]
    for budget in made:
        wanted = budget["spec"]["selector"]["matchLabels"].items()
        assert len([labels for labels in pods if wanted <= labels.items()]) == 1
        assert budget["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [("serve", "Deployment"), ("node-agent", "DaemonSet"), ("kafka", "StatefulSet")],
)
def test_changed_configuration_rolls_the_pods(name: str, kind: str, tmp_path: Path) -> None:
    def annotations(more: dict[str, Any]) -> dict[str, str]:
        manifest = one(objects(name, more, tmp_path), kind)
        found: dict[str, str] = manifest["spec"]["template"]["metadata"]["annotations"]
        return found

    before = annotations({})
    assert annotations({"config": {"uploader": {"threads": 3}}}) != before
    assert annotations({"prometheusRule": {"labels": {"a": "b"}}}) == before


def test_runbook_links_lead_below_the_home_of_the_chart(tmp_path: Path) -> None:
    found = objects("node-agent", {"prometheusRule": {"runbookUrl": ""}}, tmp_path)
    (group,) = one(found, "PrometheusRule")["spec"]["groups"]
    for rule in group["rules"]:
        assert rule["annotations"]["runbook_url"] == f"{PAGES}/{rule['alert']}.md"
    dashboard = one(found, "ConfigMap", f"{RELEASE}-sidetier-dashboard")["data"]["sidetier.json"]
    assert f"[SidetierGapFound]({PAGES}/SidetierGapFound.md)" in dashboard


def test_runbook_links_of_the_dashboard_follow_the_value() -> None:
    found = rendered(CHART / "ci" / "node-agent-values.yaml")
    dashboard = one(found, "ConfigMap", f"{RELEASE}-sidetier-dashboard")["data"]["sidetier.json"]
    assert "(https://runbooks.example.com/sidetier/SidetierGapFound.md)" in dashboard
    assert HOME not in dashboard


def test_image_is_named_by_its_digest_if_one_is_given(tmp_path: Path) -> None:
    digest = f"sha256:{'ab' * 32}"
    found = objects("jobs", {"image": {"digest": digest}}, tmp_path)
    job = next(o for o in found if o["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com/sidetier@{digest}"
