"""The sidecar in StatefulSets of other charts: as a dependency, and through Bitnami's values."""

import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.harness.chart import CHART, RELEASE, manifests, one, rendered, run_helm

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
