"""The sidecar beside brokers of other charts: as a dependency, through Bitnami's values, and beside
Strimzi.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.harness.chart import CHART, RELEASE, manifests, one, rendered, run_helm, template
from tests.harness.markdown import blocks, text_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STATEFUL_SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: kafka
spec:
  serviceName: kafka
  selector: {matchLabels: {app: kafka}}
  template:
    metadata:
      labels: {app: kafka}
      annotations:
        {{- include "sidetier.sidecar.podAnnotations" .Subcharts.sidetier | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: 120
      initContainers:
        {{- include "sidetier.sidecar.container" .Subcharts.sidetier | nindent 8 }}
      containers:
        - name: kafka
          image: apache/kafka:4.1.0
          volumeMounts: [{name: data, mountPath: /bitnami/kafka}]
      volumes:
        {{- include "sidetier.sidecar.volumes" .Subcharts.sidetier | nindent 8 }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


def umbrella(tmp_path: Path) -> list[dict[str, Any]]:
    chart = tmp_path / "brokers"
    (chart / "templates").mkdir(parents=True)
    about = {
        "apiVersion": "v2",
        "name": "brokers",
        "version": "1.0.0",
        "dependencies": [{"name": "sidetier", "version": ">=0.1.0", "repository": ""}],
    }
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    (chart / "templates" / "kafka.yaml").write_text(STATEFUL_SET, encoding="utf-8")
    shutil.copytree(CHART, chart / "charts" / "sidetier")
    values = yaml.safe_load((CHART / "ci" / "sidecar-values.yaml").read_text(encoding="utf-8"))
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"sidetier": values}), encoding="utf-8")
    ran = run_helm("template", RELEASE, chart, "--values", file)
    assert ran.code == 0, ran.err
    return manifests(ran.out)


def test_stateful_set_can_include_the_named_templates(tmp_path: Path) -> None:
    objects = umbrella(tmp_path)
    stateful_set = one(objects, "StatefulSet")
    kubernetes_validate.validate(stateful_set, "1.29", strict=True)
    spec = stateful_set["spec"]["template"]["spec"]
    (sidecar,) = spec["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    (volume,) = spec["volumes"]
    config = one(objects, "ConfigMap")
    of_ours = {"name": config["metadata"]["name"], "optional": True}
    assert volume == {"name": "sidetier-config", "configMap": of_ours}


def test_values_for_bitnami_equal_the_rendered_templates(tmp_path: Path) -> None:
    stateful_set = one(umbrella(tmp_path), "StatefulSet")
    spec = stateful_set["spec"]["template"]["spec"]
    file = CHART / "examples" / "bitnami-kafka.yaml"
    theirs = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert set(theirs) == {"controller", "broker", "networkPolicy"}
    for role in (theirs["controller"], theirs["broker"]):
        assert role["initContainers"] == spec["initContainers"]
        assert role["extraVolumes"] == spec["volumes"]
        assert role["terminationGracePeriodSeconds"] > 40
    # Bitnami's policy is enabled by default and allows only known ports: metrics must be allowed,
    # too.
    (sidecar,) = spec["initContainers"]
    (rule,) = theirs["networkPolicy"]["extraIngress"]
    assert [port["port"] for port in rule["ports"]] == [sidecar["ports"][0]["containerPort"]]
    name = one(rendered(CHART / "ci" / "sidecar-values.yaml"), "ConfigMap")["metadata"]["name"]
    assert theirs["broker"]["extraVolumes"][0]["configMap"]["name"] == name


def test_examples_for_strimzi_find_the_log_dirs_of_a_node(tmp_path: Path) -> None:
    """As user and group of the rendered pods, in directories with the kubelet's permissions."""
    guide = text_of(CHART.parent.parent / "docs" / "deploy-strimzi.md")
    examples = [yaml.safe_load(block.text) for block in blocks(guide, "yaml")]
    assert [example["mode"] for example in examples] == ["nodeAgent", "nodeAgent"]
    for example in examples:
        objects = manifests(template(example, tmp_path).out)
        pod = one(objects, "Pod", f"{RELEASE}-sidetier-test-config")["spec"]
        [container] = pod["containers"]
        assert container["args"][:2] == ["config", "check"]
        assert "--settings-only" not in container["args"]
        agent = one(objects, "DaemonSet")["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == agent["nodeSelector"]
        [volume] = example["logDirVolumes"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts[volume["name"]] == volume["mountPath"]
        paths = {one["name"]: one.get("hostPath", {}).get("path") for one in pod["volumes"]}
        assert paths[volume["name"]] == volume["hostPath"]
        security = agent["securityContext"]
        with tempfile.TemporaryDirectory() as host:  # other users may not enter tmp_path
            Path(host).chmod(0o755)
            [pattern] = example["config"]["log_dirs"]
            inside = pattern.removeprefix(volume["mountPath"] + "/")
            log_dir = Path(host, inside.replace("*", "7"))
            log_dir.mkdir(parents=True)
            if "pods" in pattern:
                Path(host, "7").chmod(0o750)  # root:root, as the kubelet's directory of a pod
            ids = ["--reuid", str(security["runAsUser"]), "--regid", str(security["runAsGroup"])]
            look = ["sh", "-c", f"cd {host}/{inside}"]
            found = ["setpriv", *ids, "--clear-groups", "--inh-caps=-all", "--", *look]
            subprocess.run(found, check=True)
