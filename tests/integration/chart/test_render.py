"""The chart rendered by the real helm: the manifests of each mode, valid for Kubernetes.

`UPDATE_GOLDEN=1` rewrites the golden manifests.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from devtools.chart.alerts import RUNBOOK_URL
from sidetier.cli.main import run
from tests.harness import operator_kinds
from tests.harness.chart import (
    CHART,
    CI_VALUES,
    RELEASE,
    ROOT,
    Manifest,
    manifests,
    one,
    pod_spec,
    rendered,
    rendered_text,
    run_helm,
    sidetier_containers,
    template,
)
from tests.harness.kube_api import DRY_RUN, kube_api
from tests.harness.parsed import parse as parse_command
from tests.integration.pipeline.test_bad_days import NAMESPACE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

GOLDEN = Path(__file__).parent / "golden"
OF_THE_OPERATOR = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
MADE_FROM_CODE = ("dashboard", "prometheusrule")
"""Compared with the code below, and too long for a review of the golden files."""
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()

each_way = pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)


def values_named(name: str) -> Path:
    return CHART / "ci" / f"{name}-values.yaml"


def test_each_deployment_mode_has_its_values_file() -> None:
    names = {path.stem.removesuffix("-values") for path in CI_VALUES}
    assert names == {
        "sidecar",
        "spool",
        "kafka",
        "node-agent",
        "jobs",
        "restore",
        "mirror",
        "serve",
        "fleet",
    }


@each_way
def test_strict_lint_finds_nothing(values: Path) -> None:
    ran = run_helm("lint", "--strict", CHART, "--values", values)
    assert ran.code == 0, ran.out + ran.err
    assert "[WARNING]" not in ran.out


def test_strict_lint_finds_nothing_in_the_defaults() -> None:
    ran = run_helm("lint", "--strict", CHART)
    assert ran.code == 0, ran.out + ran.err


@each_way
def test_manifests_equal_the_golden_files(values: Path) -> None:
    golden = GOLDEN / f"{values.stem.removesuffix('-values')}.yaml"
    made = "---\n".join(
        part
        for part in rendered_text(values).split("---\n")
        if not any(f"templates/{name}.yaml" in part for name in MADE_FROM_CODE)
    )
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(made, encoding="utf-8")
    assert made == golden.read_text(encoding="utf-8")


@each_way
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_accepts_every_object(values: Path, version: str) -> None:
    known = [o for o in rendered(values) if o["kind"] not in OF_THE_OPERATOR]
    assert known
    for manifest in known:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_operator_accepts_every_object_of_its_kinds() -> None:
    """Validated with its published definitions, as installed in a cluster."""
    own = [o for values in CI_VALUES for o in rendered(values) if o["kind"] in OF_THE_OPERATOR]
    assert {o["kind"] for o in own} == OF_THE_OPERATOR
    for manifest in own:
        operator_kinds.check(manifest)


def without_a_selector(spec: Manifest) -> None:
    del spec["selector"]


def with_a_wrong_interval(spec: Manifest) -> None:
    spec["podMetricsEndpoints"][0]["interval"] = "30 seconds"


def with_a_field_too_many(spec: Manifest) -> None:
    spec["podMetricsEndpoints"][0]["scrapeInterval"] = "30s"


@pytest.mark.parametrize(
    "spoil", [without_a_selector, with_a_wrong_interval, with_a_field_too_many]
)
def test_object_that_the_operator_does_not_accept_is_detected(
    spoil: Callable[[Manifest], None],
) -> None:
    monitor = one(rendered(values_named("sidecar")), "PodMonitor")
    spoil(monitor["spec"])
    with pytest.raises(jsonschema.ValidationError):
        operator_kinds.check(monitor)


def test_object_that_kubernetes_does_not_accept_is_detected() -> None:
    daemon_set = one(rendered(values_named("node-agent")), "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemon_set, NEWEST, strict=True)


@each_way
def test_names_and_labels_are_valid_and_names_are_unique(values: Path) -> None:
    objects = rendered(values)
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names)
    for manifest in objects:
        limit = 52 if manifest["kind"] == "CronJob" else 63
        assert len(manifest["metadata"]["name"]) <= limit
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert all(len(str(value)) <= 63 for value in labels.values())


@each_way
def test_configuration_is_accepted_by_the_program(
    values: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    maps = [
        o for o in rendered(values) if o["kind"] == "ConfigMap" and "sidetier.yaml" in o["data"]
    ]
    assert len(maps) == 1
    file = tmp_path / "sidetier.yaml"
    file.write_text(maps[0]["data"]["sidetier.yaml"], encoding="utf-8")
    for container in sidetier_containers(rendered(values)):  # variables of its environment count
        for variable in container.get("env", ()):
            monkeypatch.setenv(variable["name"], variable.get("value", "secret"))
    code = run(["config", "check", "--settings-only", "--config", str(file), "--output", "json"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["problems"], told["warnings"]) == (0, [], [])
    given = yaml.safe_load(values.read_text(encoding="utf-8"))
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    if given.get("mode") != "jobs":  # probes and Prometheus connect from outside the container
        assert config["http"].pop("host") == "0.0.0.0"  # noqa: S104 -- what the chart sets
    if given.get("mode") != "jobs" or {"serve", "fleet"} & given.keys():  # there is a status page
        assert config["http"].pop("runbook_url").startswith("https://")
    assert {name: part for name, part in config.items() if part} == given["config"]


@each_way
def test_every_command_is_accepted_by_the_program(values: Path) -> None:
    containers = sidetier_containers(rendered(values))
    assert containers
    for container in containers:
        parse_command(list(container["args"]))
        assert "--config" in container["args"]


@each_way
def test_containers_have_no_unnecessary_privileges(values: Path) -> None:
    objects = rendered(values)
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Secret"} & {
        o["kind"] for o in objects
    }
    for spec in filter(None, map(pod_spec, objects)):
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False  # SIDETIER_PORT would be a setting
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
    for account in (o for o in objects if o["kind"] == "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for container in sidetier_containers(objects):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["runAsNonRoot"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "cpu" not in container["resources"]["limits"]


@each_way
def test_log_dirs_are_mounted_read_only_except_for_a_spool_and_hydrate(values: Path) -> None:
    config = yaml.safe_load(values.read_text(encoding="utf-8"))["config"]
    spools = config.get("uploader", {}).get("pins", {}).get("spool", [])
    for container in sidetier_containers(rendered(values)):
        for mount in container["volumeMounts"]:
            if mount["name"] in {"archive", "tmp", "source", "target"}:
                continue
            if container["name"] == "hydrate" and mount["name"] == "data":
                assert mount["readOnly"] is False
                continue
            holds = any(spool.startswith(mount["mountPath"] + "/") for spool in spools)
            assert mount["readOnly"] is not holds, mount


@each_way
def test_every_mount_has_its_volume(values: Path) -> None:
    for manifest in rendered(values):
        spec = pod_spec(manifest)
        if spec is None:
            continue
        claims = manifest["spec"].get("volumeClaimTemplates", ())
        volumes = {claim["metadata"]["name"] for claim in claims}
        volumes |= {volume["name"] for volume in spec["volumes"]}
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        assert {m["name"] for c in containers for m in c["volumeMounts"]} == volumes


def test_sidecar_starts_before_the_broker_and_ends_after_it() -> None:
    stateful_set = one(rendered(values_named("kafka")), "StatefulSet")
    spec = pod_spec(stateful_set)
    assert spec is not None
    (sidecar,), (broker,) = spec["initContainers"], spec["containers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("sidetier", "Always")
    assert sidecar["args"][:2] == ["run", "--wait"]
    assert "startupProbe" not in sidecar  # the broker would wait for it
    assert "readinessProbe" not in sidecar  # the broker serves without it
    assert sidecar["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "sidetier-http"}
    assert sidecar["securityContext"]["runAsUser"] == 1000
    assert spec["terminationGracePeriodSeconds"] > 25
    assert {mount["name"] for mount in broker["volumeMounts"]} == {"data"}


def test_small_kafka_is_one_cluster() -> None:
    stateful_set = one(rendered(values_named("kafka")), "StatefulSet")
    name, headless = stateful_set["metadata"]["name"], stateful_set["spec"]["serviceName"]
    spec = pod_spec(stateful_set)
    assert spec is not None
    variables = {v["name"]: v.get("value") for v in spec["containers"][0]["env"]}
    voters = variables["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
    assert voters == [f"{i}@{name}-{i}.{headless}:9093" for i in range(3)]
    assert variables["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://$(POD_NAME).{headless}:9092"
    assert variables["KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"] == "2"
    assert variables["KAFKA_LOG_SEGMENT_BYTES"] == "1048576"
    service = one(rendered(values_named("kafka")), "Service", headless)
    assert service["spec"]["selector"] == stateful_set["spec"]["selector"]["matchLabels"]


def test_changed_configuration_restarts_the_pods() -> None:
    def checksum(*more: str) -> str:
        ran = run_helm("template", RELEASE, CHART, "--values", values_named("node-agent"), *more)
        objects = [o for o in yaml.safe_load_all(ran.out) if o]
        metadata = one(objects, "DaemonSet")["spec"]["template"]["metadata"]
        return str(metadata["annotations"]["checksum/sidetier-config"])

    assert checksum() == checksum()
    assert checksum() != checksum("--set", "config.uploader.threads=3")


def test_monitors_and_policies_select_the_pods() -> None:
    objects = rendered(values_named("node-agent"))
    pods = one(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    service = one(objects, "Service")
    policy = one(objects, "NetworkPolicy")["spec"]
    monitor = one(objects, "ServiceMonitor")["spec"]
    for selector in (service["spec"]["selector"], policy["podSelector"]["matchLabels"]):
        assert selector.items() <= pods.items()
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    credentials = {"credentials": {"name": "sidetier-http", "key": "token"}}
    assert monitor["endpoints"][0]["authorization"] == credentials
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_ports_of_a_sidecar_are_given_by_number(tmp_path: Path) -> None:
    """Services before Kubernetes 1.33, and most network plugins, do not search init containers for
    a port name (kubernetes/kubernetes#127958, #125285).
    """
    values = yaml.safe_load(values_named("kafka").read_text(encoding="utf-8"))
    values |= {"podMonitor": {"enabled": False}, "service": {"enabled": True}}
    values["config"]["http"] = {"port": 9300}
    ran = template(values, tmp_path)
    assert ran.code == 0, ran.err
    objects = manifests(ran.out)
    (metrics,) = one(objects, "Service", f"{RELEASE}-sidetier")["spec"]["ports"]
    assert (metrics["port"], metrics["targetPort"]) == (9300, 9300)
    rules = one(objects, "NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [9300, 9092, 9093]


def test_pod_monitor_selects_the_brokers_pods() -> None:
    objects = rendered(values_named("sidecar"))
    spec = one(objects, "PodMonitor")["spec"]
    given = yaml.safe_load(values_named("sidecar").read_text(encoding="utf-8"))
    assert spec["selector"]["matchLabels"] == given["sidecar"]["podSelector"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("sidetier-http", "/metrics")


def test_alerts_can_be_disabled_and_changed_and_link_to_their_pages() -> None:
    (group,) = one(rendered(values_named("node-agent")), "PrometheusRule")["spec"]["groups"]
    rules: dict[str, Manifest] = {rule["alert"]: rule for rule in group["rules"]}
    theirs = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    expected = {rule["alert"]: rule for rule in theirs["groups"][0]["rules"]}
    assert set(expected) - set(rules) == {"SidetierRescuing"}
    changed = rules.pop("SidetierUploadStalled")
    assert (changed["for"], changed["labels"]) == (
        "10m",
        {"severity": "critical", "team": "streams"},
    )
    assert changed["expr"].endswith("> 1800")
    slower = rules.pop("SidetierNeverArchived")["expr"]
    assert slower == expected["SidetierNeverArchived"]["expr"].replace("> 3600", "> 7200")
    assert "> 691200" in slower, "the other threshold is the default"
    for name, rule in rules.items():
        assert rule["expr"] == expected[name]["expr"]
        assert rule["labels"]["team"] == "streams"
        url = rule["annotations"]["runbook_url"]
        assert url == f"https://runbooks.example.com/sidetier/{name}.md"
        assert (ROOT / "docs" / "runbook" / f"{name}.md").exists()


def test_dashboard_equals_the_generated_file() -> None:
    dashboard = one(
        rendered(values_named("node-agent")), "ConfigMap", f"{RELEASE}-sidetier-dashboard"
    )
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    written = (CHART / "files" / "dashboard.json").read_text(encoding="utf-8")
    given = yaml.safe_load(values_named("node-agent").read_text(encoding="utf-8"))
    written = written.replace(RUNBOOK_URL, given["prometheusRule"]["runbookUrl"])
    assert json.loads(dashboard["data"]["sidetier.json"]) == json.loads(written)


def test_backfill_is_one_job_per_broker() -> None:
    jobs = [o for o in rendered(values_named("jobs")) if o["kind"] == "Job"]
    claims = {
        volume["persistentVolumeClaim"]["claimName"]: volume["persistentVolumeClaim"]["readOnly"]
        for job in jobs
        for volume in job["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"data-kafka-broker-0": True, "data-kafka-broker-1": True}


def test_findings_are_not_retried_as_failures() -> None:
    for job in (o for o in rendered(values_named("jobs")) if o["kind"] == "CronJob"):
        spec = job["spec"]["jobTemplate"]["spec"]
        (rule,) = spec["podFailurePolicy"]["rules"]
        assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, 3, 4])
        container = spec["template"]["spec"]["containers"][0]["name"]
        assert rule["onExitCodes"]["containerName"] == container
        assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_helm_test_checks_the_settings_and_the_store() -> None:
    pods = [o for o in rendered(values_named("sidecar")) if o["kind"] == "Pod"]
    assert all(pod["metadata"]["annotations"]["helm.sh/hook"] == "test" for pod in pods)
    assert {tuple(pod["spec"]["containers"][0]["args"][:2]) for pod in pods} == {
        ("config", "check"),
        ("ls", "--quick"),
    }


@each_way
def test_notes_give_the_next_steps(values: Path, tmp_path: Path) -> None:
    dry: list[str | Path] = ["--namespace", NAMESPACE, *DRY_RUN, "--values", values]
    with kube_api(tmp_path, {}) as kubeconfig:
        ran = run_helm("install", RELEASE, CHART, *dry, kubeconfig=kubeconfig)
    assert ran.code == 0, ran.err
    _, _, notes = ran.out.partition("NOTES:")
    config: dict[str, Any] = yaml.safe_load(values.read_text(encoding="utf-8"))["config"]
    assert config["storage"]["url"] in notes
    assert f"helm test {RELEASE} -n {NAMESPACE}" in notes
    assert "<no value>" not in notes
    assert "%!" not in notes
    assert "neither extraEnv nor extraEnvFrom" not in notes


def test_notes_name_a_secret_that_is_not_set(tmp_path: Path) -> None:
    dry: list[str | Path] = [
        "--namespace",
        NAMESPACE,
        *DRY_RUN,
        "--values",
        values_named("sidecar"),
    ]
    with kube_api(tmp_path, {}) as kubeconfig:
        ran = run_helm(
            "install", RELEASE, CHART, *dry, "--set", "extraEnv=null", kubeconfig=kubeconfig
        )
    assert ran.code == 0, ran.err
    for name in ("S3_ACCESS_KEY_ID", "S3_SECRET_KEY"):
        assert f"the variable {name}, which neither extraEnv nor extraEnvFrom sets" in ran.out


def test_package_contains_all_needed_files(tmp_path: Path) -> None:
    ran = run_helm("package", CHART, "--destination", tmp_path)
    assert ran.code == 0, ran.err
    (package,) = tmp_path.iterdir()
    ran = run_helm(
        "template",
        RELEASE,
        package,
        "--namespace",
        NAMESPACE,
        "--values",
        values_named("node-agent"),
    )
    assert ran.out == rendered_text(values_named("node-agent"))
