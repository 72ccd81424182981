"""Keys of `storage.encryption` from a Secret reach each container that reads or writes segments."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sidetier.config.model import Config
from tests.harness.chart import (
    CHART,
    RELEASE,
    ROOT,
    Manifest,
    manifests,
    one,
    pod_spec,
    sidetier_containers,
    template,
)
from tests.harness.markdown import blocks
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

EVERYTHING = {
    "config": {"retention": {"store": [{"topics": ["orders"], "age": "90d"}]}},
    "serve": {"enabled": True, "insecure": True},
    "verify": {"enabled": True},
    "gc": {"enabled": True},
    "cronJobs": {"listing": {"schedule": "17 3 * * *", "args": ["ls"]}},
}


def documented() -> dict[str, Any]:
    """The values in docs/encryption.md."""
    text = (ROOT / "docs" / "encryption.md").read_text(encoding="utf-8")
    (values,) = (block.text for block in blocks(text, "yaml") if "extraEnv" in block.text)
    parsed: dict[str, Any] = yaml.safe_load(values)
    return parsed


def objects(mode: str, changes: dict[str, Any], directory: Path) -> list[Manifest]:
    """Render everything of a mode with these changes; lists are added to those of the mode."""
    text = (CHART / "ci" / f"{mode}-values.yaml").read_text(encoding="utf-8")
    base = merged(yaml.safe_load(text), EVERYTHING)
    lists = {name: base.get(name, []) + more for name, more in changes.items() if name != "config"}
    ran = template(merged(base, {**changes, **lists}), directory)
    assert ran.code == 0, ran.err
    return manifests(ran.out)


def components(found: list[Manifest]) -> set[str]:
    return {
        str(manifest["metadata"]["labels"]["app.kubernetes.io/component"])
        for manifest in found
        if pod_spec(manifest) is not None and "helm.sh/hook" not in str(manifest["metadata"])
    }


@pytest.mark.parametrize(("mode", "sidecar"), [("node-agent", "node-agent"), ("kafka", "kafka")])
def test_documented_key_is_a_variable_of_each_container(
    mode: str, sidecar: str, tmp_path: Path
) -> None:
    values = documented()
    found = objects(mode, values, tmp_path)
    assert components(found) >= {sidecar, "serve", "verify", "gc", "cron-listing"}
    (variable,) = values["extraEnv"]
    for container in sidetier_containers(found):
        assert variable in container["env"], container["name"]
    (config,) = (
        yaml.safe_load(manifest["data"]["sidetier.yaml"])
        for manifest in found
        if manifest["kind"] == "ConfigMap" and "sidetier.yaml" in manifest["data"]
    )
    encryption = Config.model_validate(config, strict=False).storage.encryption
    assert encryption is not None
    assert encryption.keys["2026"].env == variable["name"]


def test_key_in_a_file_is_mounted_in_each_container(tmp_path: Path) -> None:
    mount = {"name": "keys", "mountPath": "/run/sidetier-keys", "readOnly": True}
    volume = {"name": "keys", "secret": {"secretName": "sidetier-keys", "optional": True}}
    file = {"keys": {"2026": {"file": "/run/sidetier-keys/2026"}}}
    changes = {
        "config": {"storage": {"encryption": file}},
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
    }
    found = objects("node-agent", changes, tmp_path)
    agent = one(found, "DaemonSet", f"{RELEASE}-sidetier")
    specs = [spec for spec in map(pod_spec, found) if spec is not None]
    assert pod_spec(agent) in specs
    for spec in specs:
        assert volume in spec["volumes"]
    for container in sidetier_containers(found):
        assert mount in container["volumeMounts"], container["name"]


def test_key_that_is_written_into_the_values_is_refused(tmp_path: Path) -> None:
    values = documented()
    values["extraEnv"] = [{"name": "ENCRYPTION_KEY_2026", "value": "A" * 43 + "="}]
    file = tmp_path / "base"
    file.mkdir()
    text = (CHART / "ci" / "jobs-values.yaml").read_text(encoding="utf-8")
    ran = template(merged(yaml.safe_load(text), values), file)
    assert ran.code != 0
    assert "extraEnv[0]: ENCRYPTION_KEY_2026 holds a secret" in ran.err
