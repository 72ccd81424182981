"""The sidecar in a broker's pod must not harm the broker."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, Manifest, manifests, one, pod_spec, rendered, template
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

KAFKA = CHART / "ci" / "kafka-values.yaml"


def small_kafka(more: dict[str, Any], directory: Path) -> Manifest:
    values = merged(yaml.safe_load(KAFKA.read_text(encoding="utf-8")), more)
    ran = template(values, directory)
    assert ran.code == 0, ran.err
    spec = pod_spec(one(manifests(ran.out), "StatefulSet"))
    assert spec is not None
    return spec


def test_missing_configuration_does_not_keep_a_broker_from_starting() -> None:
    spec = pod_spec(one(rendered(KAFKA), "StatefulSet"))
    assert spec is not None
    (volume,) = (v for v in spec["volumes"] if v["name"] == "sidetier-config")
    assert volume["configMap"]["optional"] is True
    agent = pod_spec(one(rendered(CHART / "ci" / "node-agent-values.yaml"), "DaemonSet"))
    assert agent is not None
    (volume,) = (v for v in agent["volumes"] if v["name"] == "sidetier-config")
    assert "optional" not in volume["configMap"]  # that pod has no other container


def test_spool_directories_are_created_before_the_sidecar_starts(tmp_path: Path) -> None:
    spool = "/var/lib/kafka/sidetier"
    spec = small_kafka({"config": {"uploader": {"pins": {"spool": [spool]}}}}, tmp_path)
    maker, sidecar = spec["initContainers"]
    assert maker["command"] == ["mkdir", "-p", spool]
    assert "restartPolicy" not in maker  # it ends before the sidecar begins
    assert maker["securityContext"] == sidecar["securityContext"]
    (mount,) = maker["volumeMounts"]
    assert (mount["name"], mount["readOnly"]) == ("data", False)
    assert mount in sidecar["volumeMounts"]


def test_example_with_a_spool_has_one_per_mount() -> None:
    """A sidecar refuses to start if a log dir has no spool on its mount."""
    values = yaml.safe_load((CHART / "ci" / "spool-values.yaml").read_text(encoding="utf-8"))
    spools = values["config"]["uploader"]["pins"]["spool"]
    mounts = {volume["mountPath"] for volume in values["logDirVolumes"]}
    assert {str(Path(spool).parent) for spool in spools} == mounts


def test_small_kafka_has_memory_beside_its_heap(tmp_path: Path) -> None:
    def heap(spec: Manifest) -> list[str]:
        variables = spec["containers"][0]["env"]
        return [v["value"] for v in variables if v["name"] == "KAFKA_HEAP_OPTS"]

    spec = small_kafka({}, tmp_path)
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}
    assert heap(spec) == ["-Xms512m -Xmx512m"]
    own = {"kafka": {"extraEnv": [{"name": "KAFKA_HEAP_OPTS", "value": "-Xmx2g"}]}}
    assert heap(small_kafka(own, tmp_path)) == ["-Xmx2g"]
