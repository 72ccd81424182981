"""The CronJob of `sidetier gc`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, RELEASE, manifests, one, template
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

RULES = {"config": {"retention": {"store": [{"topics": ["orders"], "age": "90d"}]}}}


def given(**gc: Any) -> dict[str, Any]:  # noqa: ANN401 - values of the chart
    text = (CHART / "ci" / "jobs-values.yaml").read_text(encoding="utf-8")
    return merged(merged(yaml.safe_load(text), RULES), {"gc": gc})


def test_gc_is_off_by_default(tmp_path: Path) -> None:
    ran = template(given(), tmp_path)
    assert ran.code == 0, ran.err
    assert f"{RELEASE}-sidetier-gc" not in ran.out


def test_gc_runs_on_a_schedule_without_a_question(tmp_path: Path) -> None:
    ran = template(given(enabled=True, args=["--max-deletes-per-second", "200"]), tmp_path)
    assert ran.code == 0, ran.err
    job = next(
        manifest
        for manifest in manifests(ran.out)
        if manifest["kind"] == "CronJob" and manifest["metadata"]["name"].endswith("-gc")
    )
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        *("gc", "--yes", "--config", "/etc/sidetier/sidetier.yaml"),
        *("--max-deletes-per-second", "200"),
    ]
    config = one(manifests(ran.out), "ConfigMap")
    assert "retention" in str(config["data"])


def test_tail_packs_have_a_schedule_of_their_own_and_need_no_rule(tmp_path: Path) -> None:
    packs = {"enabled": True, "schedule": "5 4 * * *", "args": ["--older-than", "30d"]}
    values = given(tailPacks=packs, activeDeadlineSeconds=600)
    del values["config"]["retention"]
    ran = template(values, tmp_path)
    assert ran.code == 0, ran.err
    [job] = [
        manifest
        for manifest in manifests(ran.out)
        if manifest["kind"] == "CronJob" and "-gc" in manifest["metadata"]["name"]
    ]
    assert job["metadata"]["name"] == f"{RELEASE}-sidetier-gc-tail"
    assert job["spec"]["schedule"] == "5 4 * * *"
    spec = job["spec"]["jobTemplate"]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 600)
    [container] = spec["template"]["spec"]["containers"]
    assert container["args"] == [
        *("gc", "--tail-packs", "--yes", "--config", "/etc/sidetier/sidetier.yaml"),
        *("--older-than", "30d"),
    ]


def test_gc_without_a_rule_is_refused(tmp_path: Path) -> None:
    values = given(enabled=True)
    del values["config"]["retention"]
    ran = template(values, tmp_path)
    assert ran.code != 0
    assert "gc.enabled: config.retention.store is not set" in ran.err
