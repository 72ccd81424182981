"""Generated files of the chart match the code and refer only to existing names."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from devtools.chart.alerts import ALERTS, RUNBOOK_URL
from devtools.chart.dashboard import dashboard
from devtools.chart.files import BEGIN, FILES, described_values, with_table, write_files
from devtools.chart.values_schema import values_schema
from sidetier import __version__
from sidetier.config.catalogue import json_schema
from sidetier.config.uploader import UploaderConfig
from sidetier.telemetry.catalogue import METRICS, PREFIX, Kind, Metric
from sidetier.telemetry.endpoint_catalogue import ENDPOINT_METRICS
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.telemetry.mirror_catalogue import MIRROR_METRICS
from sidetier.telemetry.verify_catalogue import VERIFY_METRICS
from tests.harness.markdown import commands

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "sidetier"
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
NAME = re.compile(rf"\b(?:{PREFIX}|process_)\w+")


@pytest.mark.parametrize("name", FILES)
def test_generated_file_matches_the_code(name: str) -> None:
    written = (CHART / name).read_text(encoding="utf-8")
    assert written == FILES[name](CHART), "run `make docs`"


def test_all_generated_files_are_written(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for name in ("values.yaml", "README.md"):
        (tmp_path / name).write_bytes((CHART / name).read_bytes())
    write_files(tmp_path)
    assert all((tmp_path / name).read_bytes() == (CHART / name).read_bytes() for name in FILES)


# -- the values -----------------------------------------------------------------------------------


def test_configuration_in_the_values_matches_the_models() -> None:
    ours, theirs = values_schema(), json_schema()
    assert ours["$defs"] == theirs["$defs"]
    assert ours["properties"]["config"]["properties"] == theirs["properties"]
    assert ours["properties"]["config"]["additionalProperties"] is False


def test_schema_and_defaults_have_the_same_values() -> None:
    assert set(_keys(values_schema(), DEFAULTS)) == set(_given(DEFAULTS))


def _keys(schema: Mapping[str, Any], defaults: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Keys of the schema, except those of Kubernetes and of the generated models."""
    for key, inner in schema.get("properties", {}).items():
        if key == "global":
            continue
        yield f"{at}{key}"
        if key not in {"config", "alerts"} and isinstance(defaults.get(key), dict):
            yield from _keys(inner, defaults[key], f"{at}{key}.")


def _given(values: Mapping[str, Any], at: str = "") -> Iterator[str]:
    left_to_kubernetes = {
        "config", "alerts", "updateStrategy", "resources", "podSecurityContext", "securityContext",
        "livenessProbe", "readinessProbe", "labels", "volume",
    }  # fmt: skip
    for key, value in values.items():
        yield f"{at}{key}"
        if isinstance(value, dict) and key not in left_to_kubernetes:
            yield from _given(value, f"{at}{key}.")


def test_the_readme_describes_every_default() -> None:
    listed = {
        ".".join(value.path) for value in described_values((CHART / "values.yaml").read_text())
    }
    parts = {
        "sidecar", "nodeAgent", "backfill", "hydrate", "drill", "gc", "kafka", "kafka.image",
        "kafka.storage", "image", "serviceAccount", "service", "podMonitor", "serviceMonitor",
        "prometheusRule", "dashboard",
        "networkPolicy", "tests", "verify",
        "fleet", "fleet.service", "gc.tailPacks",
        "serve", "serve.live", "serve.groups", "serve.tls", "serve.users", "serve.service",
        "serve.autoscaling",
    }  # fmt: skip
    assert listed == set(_given(DEFAULTS)) - parts


def test_readme_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(BEGIN.strip())):
        with_table(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.password",
        "ssl.key.pem",
    ],
)
def test_schema_refuses_a_clear_text_secret_of_the_client(name: str) -> None:
    def problems(value: object) -> list[str]:
        config = {
            "cluster": {"name": "a"},
            "log_dirs": ["/a"],
            "storage": {"url": "s3://b"},
            "broker": {"client": {name: value, "client.id": "x"}},
        }
        validator = jsonschema.Draft202012Validator(json_schema())
        return [error.message for error in validator.iter_errors(config)]

    assert problems("hunter2")
    assert not problems({"env": "PASSWORD"})
    assert not problems({"file": "/run/secrets/password"})


def test_grace_period_of_the_pods_exceeds_the_sidecars_drain_time() -> None:
    assert DEFAULTS["terminationGracePeriodSeconds"] > UploaderConfig().shutdown_grace


def test_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


# -- alerts and dashboard -------------------------------------------------------------------------


def exported() -> frozenset[str]:
    """Names of all samples that a daemon, a mirror, an endpoint or a verification can have."""
    registry = create_registry()
    Metrics(registry)
    process = {sample.name for family in registry.collect() for sample in family.samples}
    suffixes = ("_bucket", "_count", "_sum")
    ours = {
        f"{metric.name}{suffix}"
        for metric in (*METRICS, *MIRROR_METRICS, *ENDPOINT_METRICS, *VERIFY_METRICS)
        for suffix in (suffixes if metric.kind is Kind.HISTOGRAM else ("",))
    }
    return frozenset(ours | {name for name in process if name.startswith("process_")})


def expressions() -> dict[str, str]:
    shown = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    }
    return shown | {alert.name: alert.expr for alert in ALERTS}


@pytest.mark.parametrize("where", expressions())
def test_expressions_use_only_exported_metrics(where: str) -> None:
    asked = set(NAME.findall(expressions()[where]))
    assert asked or where == "SidetierDown"
    assert asked <= exported()


def test_unknown_metric_name_is_detected() -> None:
    assert set(NAME.findall("rate(sidetier_upload_seconds[5m])")) - exported()
    assert set(NAME.findall('max(sidetier_lag{job="x"}) and process_start_time_second')) == {
        "sidetier_lag",
        "process_start_time_second",
    }


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_on_the_dashboard(metric: Metric) -> None:
    asked = {name for text in expressions().values() for name in NAME.findall(text)}
    assert any(name.startswith(metric.name) for name in asked)


def test_dashboard_variables_use_only_exported_metrics() -> None:
    asked = NAME.findall(json.dumps(dashboard()["templating"]))
    assert asked
    assert set(asked) <= exported()


def test_expressions_use_only_existing_labels() -> None:
    known = {
        label
        for metric in (*METRICS, *ENDPOINT_METRICS, *VERIFY_METRICS)
        for label in metric.labels
    }
    known |= {"job", "instance", "le", "alertname", "cluster", "broker"}
    by = [label for text in expressions().values() for label in re.findall(r"(\w+)(?:=~?\")", text)]
    for text in expressions().values():
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
            by += [label.strip() for label in group.split(",")]
    assert set(by) <= known
    assert {"topic", "condition", "outcome"} <= set(by)


def test_stat_panels_are_instant_and_graphs_are_ranges() -> None:
    """For a range, Grafana's stat panel shows the last sample, even if it is hours old."""
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert {panel["type"] for panel in panels} == {"stat", "table", "timeseries"}
    for panel in panels:
        for target in panel["targets"]:
            assert target["instant"] is (panel["type"] != "timeseries"), panel["title"]
            assert target["range"] is not target["instant"]


def test_series_of_one_graph_have_different_names() -> None:
    """A query without aggregation has one series per instance."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            summed = re.match(r"(sum|max|min|count|histogram_quantile|topk)\b", target["expr"])
            apart = re.search(r"\{\{(instance|topic)\}\}", target["legendFormat"])
            assert summed or apart, panel["title"]


def test_every_sidecar_query_selects_the_chosen_clusters() -> None:
    """The metrics of Kafka endpoints have no label `cluster`."""
    ours = {metric.name for metric in ENDPOINT_METRICS}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            of_endpoints = any(
                name.startswith(tuple(ours)) for name in NAME.findall(target["expr"])
            )
            chosen = target["expr"].count('cluster=~"$cluster"')
            assert (chosen == 0) is of_endpoints, panel["title"]
            assert of_endpoints or chosen == target["expr"].count('job=~"$job"'), panel["title"]


def test_descriptions_link_to_existing_runbook_pages() -> None:
    links = re.findall(rf"\]\({re.escape(RUNBOOK_URL)}/(\w+)\.md\)", json.dumps(dashboard()))
    assert len(links) > 15
    assert set(links) <= {alert.name for alert in ALERTS}


def test_links_lead_below_the_home_of_the_chart() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    home = chart["home"]
    assert [urls["Homepage"], urls["Repository"], *chart["sources"]] == [home] * 3
    assert f"{home}/blob/main/docs/runbook" == RUNBOOK_URL
    labels = re.findall(
        r'image\.(url|source|documentation)="([^"]+)"', (ROOT / "Dockerfile").read_text("utf-8")
    )
    documentation = urls["Documentation"]
    assert dict(labels) == {"url": home, "source": home, "documentation": documentation}
    assert {maintainer["url"] for maintainer in chart["maintainers"]} == {home}
    links = yaml.safe_load(chart["annotations"]["artifacthub.io/links"])
    for link in (*links, {"url": urls["Documentation"]}, {"url": urls["Changelog"]}):
        kind, _, path = link["url"].removeprefix(f"{home}/").partition("/main/")
        assert kind == "issues" or (ROOT / path).exists(), link
    assert (ROOT / chart["icon"].partition("/main/")[2]).exists()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        area = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & area, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= area
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_every_alert_has_a_page_and_a_switch() -> None:
    names = [alert.name for alert in ALERTS]
    assert list(DEFAULTS["prometheusRule"]["alerts"]) == names
    pages = {path.stem for path in (ROOT / "docs" / "runbook").glob("*.md")} - {"README"}
    assert pages == set(names)
    index = (ROOT / "docs" / "runbook" / "README.md").read_text(encoding="utf-8")
    for alert in ALERTS:
        page = (ROOT / alert.runbook).read_text(encoding="utf-8")
        assert page.startswith(f"# {alert.name}\n")
        assert f"]({alert.name}.md)" in index
        for part in ("**Expected output:**", "**It is over when**", "**Escalate**"):
            assert part in page, alert.name


def test_thresholds_in_the_values_equal_those_of_the_code() -> None:
    values = DEFAULTS["prometheusRule"]["alerts"]
    for alert in ALERTS:
        assert values[alert.name].get("thresholds", {}) == dict(alert.thresholds), alert.name


def test_every_alert_names_its_cluster_and_broker() -> None:
    """Except for targets that are no longer discovered, where only the job is known. Snapshots,
    drills and verifications belong to the whole cluster. A mirror belongs to two clusters, and a
    Kafka endpoint to no broker: their job and instance name them.
    """
    for alert in ALERTS:
        if alert.name.startswith(("SidetierMirror", "SidetierServe")):
            assert "$labels.job" in alert.summary, alert.name
            assert "$labels.instance" in alert.summary, alert.name
            continue
        if alert.name != "SidetierMissing":
            assert "$labels.cluster" in alert.summary, alert.name
        of_cluster = {
            "SidetierMissing",
            "SidetierClusterSnapshotOld",
            "SidetierDrillOld",
            "SidetierVerifyFindings",
            "SidetierVerifyIncomplete",
        }
        if alert.name not in of_cluster:
            assert "$labels.broker" in alert.summary, alert.name
        assert "{{ $value }} seconds" not in alert.description
        assert "{{ $value }} bytes" not in alert.description


def test_readme_command_changes_the_links_of_the_rule_file() -> None:
    (words,) = commands((CHART / "README.md").read_text(encoding="utf-8"), "sed")
    *script, file = words
    done = subprocess.run(
        ["sed", *script, ROOT / file], capture_output=True, text=True, check=True, timeout=20
    )
    rules = yaml.safe_load(done.stdout)["groups"][0]["rules"]
    assert len(rules) == len(ALERTS)
    for rule in rules:
        url = rule["annotations"]["runbook_url"]
        assert re.fullmatch(rf"https://wiki.example.com/.*/{rule['alert']}\.md", url)
