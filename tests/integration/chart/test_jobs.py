"""Backfill Jobs and CronJobs: their names and their own settings."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, Manifest, manifests, one, rendered, template
from tests.harness.sidecar import merged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

JOBS = CHART / "ci" / "jobs-values.yaml"


def given() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(JOBS.read_text(encoding="utf-8"))
    return values


def job_names(values: dict[str, Any], directory: Path) -> list[str]:
    ran = template(values, directory)
    assert ran.code == 0, ran.err
    return [o["metadata"]["name"] for o in manifests(ran.out) if o["kind"] == "Job"]


def broker(**more: object) -> dict[str, Any]:
    return {"name": "0", "claims": {"data": "data-kafka-broker-0"}, **more}


@pytest.mark.parametrize(
    "change",
    [
        {"backfill": {"brokers": [broker(claims={"data": "another"})]}},
        {"backfill": {"brokers": [broker(nodeSelector={"kubernetes.io/hostname": "node-b"})]}},
        {"backfill": {"backoffLimit": 1}},
        {"backfill": {"args": ["--dry-run"]}},
        {"config": {"uploader": {"threads": 3}}},
        {"image": {"tag": "0.2.0"}},
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}]},
        {"podSecurityContext": {"runAsUser": 1000}},
        {"terminationGracePeriodSeconds": 90},
    ],
    ids=str,
)
def test_changed_job_has_another_name(change: dict[str, Any], tmp_path: Path) -> None:
    """The API server would refuse an upgrade that changes a Job under its name."""
    base = merged(given(), {"backfill": {"brokers": [broker()]}})
    (before,) = job_names(base, tmp_path)
    assert job_names(base, tmp_path) == [before]
    (after,) = job_names(merged(base, change), tmp_path)
    assert after != before


def test_brokers_with_long_names_have_separate_jobs(tmp_path: Path) -> None:
    brokers = [{**broker(), "name": f"{'a-broker-of-many-words-' * 2}{i}"} for i in range(2)]
    names = job_names(merged(given(), {"backfill": {"brokers": brokers}}), tmp_path)
    assert len(set(names)) == 2
    assert all(len(name) <= 63 for name in names)


def container_of(cron_job: Manifest) -> Manifest:
    spec = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    found: Manifest = container
    return found


def test_scheduled_command_has_its_own_settings() -> None:
    objects = rendered(JOBS)
    own = container_of(one(objects, "CronJob", "t-sidetier-export-orders"))
    assert own["image"] == "registry.example.com/sidetier-consumer:0.1.0"
    assert own["args"][:3] == ["export", "files", "orders"]
    (variable,) = own["env"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == "schema-registry"
    assert own["resources"]["limits"] == {"memory": "2Gi"}
    # The root is read-only, and an export writes temporary files before it uploads them.
    writable = "/tmp"  # noqa: S108 -- a directory of the container
    assert {mount["mountPath"] for mount in own["volumeMounts"]} == {"/etc/sidetier", writable}
    other = container_of(one(objects, "CronJob", "t-sidetier-listing"))
    assert other["image"] == "registry.example.com/sidetier:0.1.0"
    assert not {"command", "env"} & other.keys()
    assert {mount["mountPath"] for mount in other["volumeMounts"]} == {"/etc/sidetier"}


def test_another_program_can_be_started(tmp_path: Path) -> None:
    """For example in an image that contains Spark."""
    command = ["/opt/spark/bin/spark-submit", "job.py"]
    job = {"schedule": "@daily", "command": command}
    ran = template({**given(), "cronJobs": {"a": job}}, tmp_path)
    assert ran.code == 0, ran.err
    container = container_of(one(manifests(ran.out), "CronJob"))
    assert (container["command"], "args" in container) == (command, False)


DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, f"here/sidetier@{DIGEST}"),
        ({"tag": "0.2.0"}, "here/sidetier:0.2.0"),
        ({"repository": "there/spark"}, "there/spark:0.1.0"),
        ({"digest": f"sha256:{'1' * 64}"}, f"here/sidetier@sha256:{'1' * 64}"),
    ],
)
def test_image_of_a_job_overrides_the_sidecars(
    own: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """A digest takes precedence over a tag: the sidecar's digest must not override a job's
    image.
    """
    job = {"schedule": "@daily", "args": ["ls", "--quick"], "image": own}
    image = {"repository": "here/sidetier", "digest": DIGEST}
    ran = template({**given(), "image": image, "cronJobs": {"a": job}}, tmp_path)
    assert ran.code == 0, ran.err
    assert container_of(one(manifests(ran.out), "CronJob"))["image"] == expected
