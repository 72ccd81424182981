"""Invalid values are refused before any object is created, with the remedy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, RELEASE, run_helm, template
from tests.harness.kube_api import kube_api
from tests.harness.sidecar import merged
from tests.integration.pipeline.test_bad_days import NAMESPACE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

Values = dict[str, Any]

SOUND: Values = {
    "config": {
        "cluster": {"name": "prod-a"},
        "log_dirs": ["/data/kafka"],
        "storage": {"url": "s3://bucket/kafka"},
    },
    "logDirVolumes": [{"name": "data", "mountPath": "/data"}],
    "image": {"repository": "registry.example.com/sidetier"},
}
AGENT: Values = {
    "mode": "nodeAgent",
    "logDirVolumes": [{"name": "data", "mountPath": "/data", "hostPath": "/mnt"}],
}
BACKFILL: Values = {"mode": "jobs", "backfill": {"enabled": True, "brokers": [{"name": "0"}]}}

SERVE: Values = {"mode": "jobs", "serve": {"enabled": True, "insecure": True}}

BY_THE_SCHEMA: Mapping[str, tuple[Values, str]] = {
    "an unknown value": ({"modus": "sidecar"}, "modus"),
    "an unknown value below": ({"podMonitor": {"enable": True}}, "enable"),
    "an unknown setting": ({"config": {"uploader": {"thread": 8}}}, "thread"),
    "a wrong type": ({"config": {"uploader": {"threads": "many"}}}, "threads"),
    "a setting out of bounds": ({"config": {"http": {"port": 70000}}}, "port"),
    "a wrong unit": ({"config": {"uploader": {"shutdown_grace": "25 parsecs"}}}, "shutdown_grace"),
    "a mode that there is not": ({"mode": "daemon"}, "mode"),
    "a switch that is text": ({"kafka": {"enabled": "yes"}}, "enabled"),
    "an alert that there is not": (
        {"prometheusRule": {"alerts": {"SidetierGap": {"enabled": False}}}},
        "SidetierGap",
    ),
    "a secret in the configuration": (
        {"config": {"storage": {"s3": {"secret_access_key": "hunter2"}}}},
        "secret_access_key",
    ),
    "a password of the client": (
        {"config": {"broker": {"client": {"sasl.password": "hunter2"}}}},
        "sasl.password",
    ),
    "a secret in a variable": (
        {"extraEnv": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "hunter2"}]},
        "extraEnv",
    ),
    "a secret in a variable of a scheduled command": (
        {
            "cronJobs": {
                "export": {
                    "schedule": "@daily",
                    "args": ["export"],
                    "extraEnv": [
                        {"name": "SIDETIER_SCHEMA_REGISTRY_USER_INFO", "value": "me:hunter2"}
                    ],
                }
            }
        },
        "/cronJobs/export/extraEnv",
    ),
    "a volume without a path": ({"logDirVolumes": [{"name": "data"}]}, "mountPath"),
    "a digest that is none": ({"image": {"digest": "latest"}}, "digest"),
    "a schedule without a command": ({"cronJobs": {"a": {"schedule": "@daily"}}}, "args"),
    "a schedule under a name that is none": (
        {"cronJobs": {"My_Job": {"schedule": "@daily", "args": ["ls"]}}},
        "My_Job",
    ),
    "a volume under a name that is none": (
        {"logDirVolumes": [{"name": "Data_1", "mountPath": "/data"}]},
        "Data_1",
    ),
    "a broker under a name that is none": (
        {"backfill": {"enabled": True, "brokers": [{"name": "Broker.0"}]}},
        "Broker.0",
    ),
    "a password for a drill": (
        {"drill": {"extraEnv": [{"name": "SASL_PASSWORD", "value": "hunter2"}]}},
        "/drill/extraEnv",
    ),
    "an image for drills with an unknown key": ({"drill": {"image": {"name": "x"}}}, "name"),
    "a name that would be cut": ({"fullnameOverride": "a" * 41}, "fullnameOverride"),
    "nothing that may be reached": ({"networkPolicy": {"egress": []}}, "egress"),
    "a common label that the chart sets": (
        {"commonLabels": {"app.kubernetes.io/name": "kafka"}},
        "app.kubernetes.io/name",
    ),
    "a common label that is no text": ({"commonLabels": {"team": 7}}, "team"),
    "an object that is a number": ({"extraObjects": [7]}, "extraObjects"),
    "a memory of an endpoint in another unit": ({"serve": {"memory": "1Gi"}}, "memory"),
    "a side that there is not": ({"serve": {"live": {"prefer": ["a=nearest"]}}}, "prefer"),
    "groups of an endpoint that there are not": ({"serve": {"groups": {"mode": "on"}}}, "mode"),
    "an advertised address without a port": ({"serve": {"advertise": "kafka"}}, "advertise"),
    "a secret from a ConfigMap": (
        {
            "extraEnv": [
                {
                    "name": "S3_SECRET_KEY",
                    "valueFrom": {"configMapKeyRef": {"name": "c", "key": "hunter2"}},
                }
            ]
        },
        "secretKeyRef",
    ),
}

BY_THE_TEMPLATES: Mapping[str, tuple[Values, str]] = {
    "no cluster": ({"config": {"cluster": None}}, "config.cluster.name is required"),
    "no store": ({"config": {"storage": None}}, "config.storage.url is required"),
    "no log dirs": ({"config": {"log_dirs": None}}, "config.log_dirs is required"),
    "hydrate without brokers": (
        {"mode": "jobs", "hydrate": {"enabled": True, "planVolume": {"configMap": {"name": "p"}}}},
        "hydrate.brokers is empty",
    ),
    "hydrate without a plan": (
        {"mode": "jobs", "hydrate": {"enabled": True, "brokers": [{"name": "0"}]}},
        "hydrate.planVolume is empty",
    ),
    "hydrate without a claim": (
        {
            "mode": "jobs",
            "hydrate": {
                "enabled": True,
                "brokers": [{"name": "0"}],
                "planVolume": {"configMap": {"name": "p"}},
            },
        },
        "hydrate.brokers 0 names no claim for the volume",
    ),
    "no volume": (
        {"logDirVolumes": []},
        "config.log_dirs[0] is /data/kafka, which lies in no volume",
    ),
    "a volume beside the log dir": (
        {"logDirVolumes": [{"name": "data", "mountPath": "/dat"}]},
        "which lies in no volume",
    ),
    "a node's directory in a pod of another": (
        {"logDirVolumes": [{"name": "data", "mountPath": "/data", "hostPath": "/mnt"}]},
        "logDirVolumes[0].hostPath in mode sidecar",
    ),
    "a node agent without a directory": (
        {"mode": "nodeAgent"},
        "logDirVolumes[0].hostPath is required in mode nodeAgent",
    ),
    "a node agent beside the small Kafka": (
        {**AGENT, "kafka": {"enabled": True}},
        "mode is nodeAgent, and kafka.enabled is true",
    ),
    "a backfill of nobody": (
        {"backfill": {"enabled": True}},
        "backfill.brokers is empty",
    ),
    "a backfill without a claim": (BACKFILL, "names no claim for the volume data"),
    "a startup probe that the broker would wait for": (
        {"startupProbe": {"periodSeconds": 1}},
        "startupProbe in mode sidecar",
    ),
    "a secret under another name": (
        {
            "config": {"storage": {"s3": {"access_key_id": {"env": "ID"},
                                          "secret_access_key": {"env": "STORE_KEY"}}}},
            "extraEnv": [{"name": "STORE_KEY", "value": "hunter2"}],
        },
        "extraEnv[0]: STORE_KEY holds a secret",
    ),
    "a secret under the name of a setting": (
        {
            "config": {
                "storage": {
                    "s3": {
                        "access_key_id": {"env": "ID"},
                        "secret_access_key": {"env": "SIDETIER_KEY"},
                    }
                }
            },
            "extraEnv": [
                {"name": "SIDETIER_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
            ],
        },
        "a name that begins with SIDETIER_ is a setting's",
    ),
    "a secret under another name from a ConfigMap": (
        {
            "config": {"storage": {"s3": {"access_key_id": {"env": "ID"},
                                          "secret_access_key": {"env": "STORE_KEY"}}}},
            "extraEnv": [
                {"name": "STORE_KEY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
            ],
        },
        "extraEnv[0]: STORE_KEY holds a secret",
    ),
    "an address that no probe reaches": (
        {"config": {"http": {"host": "127.0.0.1"}}},
        "config.http.host is 127.0.0.1",
    ),
    "a port that nobody knows": ({"config": {"http": {"port": 0}}}, "config.http.port is 0"),
    "a spool outside of the volumes": (
        {"config": {"uploader": {"pins": {"spool": ["/spool"]}}}},
        "config.uploader.pins.spool[0] is /spool",
    ),
    "a pattern for the small Kafka": (
        {"config": {"log_dirs": ["/data/kafka*"]}, "kafka": {"enabled": True}},
        "config.log_dirs[0] is /data/kafka*, a pattern",
    ),
    "no image": ({"image": {"repository": ""}}, "image.repository is required"),
    "a schedule with a name too long": (
        {"cronJobs": {"a" * 50: {"schedule": "@daily", "args": ["ls"]}}},
        "choose a shorter name",
    ),
    "no time to drain, in plain seconds": (
        {"config": {"uploader": {"shutdown_grace": 1_000_000}}},
        "not longer than config.uploader.shutdown_grace",
    ),
    "no time to drain": (
        {"config": {"uploader": {"shutdown_grace": "1m"}}},
        "terminationGracePeriodSeconds is 60, not longer than config.uploader.shutdown_grace",
    ),
    "a monitor of nobody": (
        {"podMonitor": {"enabled": True}},
        "sidecar.podSelector is required",
    ),
    "a monitor without a service": (
        {**AGENT, "serviceMonitor": {"enabled": True}},
        "serviceMonitor.enabled needs service.enabled",
    ),
    "two monitors": (
        {
            **AGENT,
            "service": {"enabled": True},
            "serviceMonitor": {"enabled": True},
            "podMonitor": {"enabled": True},
        },
        "counted twice",
    ),
    "an endpoint that is open by accident": (
        {"mode": "jobs", "serve": {"enabled": True}},
        "serve.tls.secretName is empty: records would be sent unencrypted",
    ),
    "an endpoint with logins over plain text": (
        {"mode": "jobs", "serve": {"enabled": True, "users": {"secretName": "u"}}},
        "serve.tls.secretName is empty: records would be sent unencrypted",
    ),
    "an endpoint with TLS for everybody": (
        {"mode": "jobs", "serve": {"enabled": True, "tls": {"secretName": "t"}}},
        "every client that reaches the port could read all topics",
    ),
    "a client CA without a certificate": (
        merged(SERVE, {"serve": {"tls": {"clientCa": "ca.crt"}}}),
        "serve.tls.secretName, which is not set",
    ),
    "local groups of several pods": (
        merged(SERVE, {"serve": {"replicas": 2, "groups": {"mode": "local"}}}),
        "serve.groups.mode is local, and serve.replicas is 2",
    ),
    "local groups of any number of pods": (
        merged(SERVE, {"serve": {"autoscaling": {"enabled": True}, "groups": {"mode": "local"}}}),
        "serve.groups.mode is local, and serve.autoscaling.enabled is true",
    ),
    "groups relayed to nowhere": (
        merged(SERVE, {"serve": {"groups": {"mode": "relay"}}}),
        "serve.groups.bootstrapServers is empty",
    ),
    "properties of no live cluster": (
        merged(SERVE, {"serve": {"groups": {"propertiesSecret": "s"}}}),
        "serve.groups.propertiesSecret is for serve.groups.mode relay",
    ),
    "properties of an endpoint's live cluster without its address": (
        merged(SERVE, {"serve": {"live": {"propertiesSecret": "s"}}}),
        "are for serve.live.bootstrapServers, which is empty",
    ),
    "fewer pods at most than at least": (
        merged(SERVE, {"serve": {"autoscaling": {"enabled": True, "maxReplicas": 1}}}),
        "serve.autoscaling.maxReplicas is lower than minReplicas",
    ),
    "a balancer that sends clients inside": (
        merged(SERVE, {"serve": {"service": {"type": "LoadBalancer"}}}),
        "serve.service.type is LoadBalancer, and serve.advertise is empty",
    ),
    "an endpoint with too little memory": (
        merged(SERVE, {"serve": {"memory": "8MiB"}}),
        "serve.memory is 8MiB: at least 16MiB are needed",
    ),
    "one port for clients and metrics": (
        merged(SERVE, {"serve": {"port": 9108}}),
        "serve.port and config.http.port are both 9108",
    ),
    "a metrics port that nobody knows": (
        merged(SERVE, {"config": {"http": {"port": 0}}}),
        "config.http.port is 0",
    ),
    "a policy around foreign brokers": (
        {"networkPolicy": {"enabled": True}},
        "would cut the brokers' own ports off",
    ),
}  # fmt: skip


def laid_over(values: Values) -> Values:
    """The valid values with these overrides; None removes a part of the configuration."""
    made = merged(SOUND, values)
    kept = {key: value for key, value in made["config"].items() if value is not None}
    return {**made, "config": kept}


def test_values_below_the_refused_ones_are_valid(tmp_path: Path) -> None:
    for values in ({}, AGENT):
        ran = template(laid_over(values), tmp_path)
        assert ran.code == 0, ran.err


@pytest.mark.parametrize("case", BY_THE_SCHEMA)
def test_schema_refuses_invalid_values(case: str, tmp_path: Path) -> None:
    values, named = BY_THE_SCHEMA[case]
    ran = template(laid_over(values), tmp_path)
    assert ran.code != 0
    assert "values don't meet the specifications of the schema" in ran.err
    assert named in ran.err
    assert "hunter2" not in ran.out + ran.err


@pytest.mark.parametrize("case", BY_THE_TEMPLATES)
def test_templates_refuse_invalid_values(case: str, tmp_path: Path) -> None:
    values, said = BY_THE_TEMPLATES[case]
    ran = template(laid_over(values), tmp_path)
    assert ran.code != 0
    assert said in ran.err
    assert "hunter2" not in ran.out + ran.err


# -- upgrades that would begin another archive ----------------------------------------------------


def upgrade(tmp_path: Path, before: Values, now: Values) -> tuple[int, str]:
    """Helm's answer to `now` as an upgrade of a release with `before`."""
    name = f"{RELEASE}-sidetier"
    installed = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"sidetier.yaml": yaml.safe_dump(before["config"])},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(now), encoding="utf-8")
    with kube_api(tmp_path, {f"{NAMESPACE}/{name}": installed}) as kubeconfig:
        ran = run_helm(
            *("template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", file),
            "--dry-run=server",
            kubeconfig=kubeconfig,
        )
    return ran.code, ran.err


def with_bits(bits: int) -> Values:
    return merged(SOUND, {"config": {"storage": {"prefix_entropy_bits": bits}}})


OTHER_ARCHIVES = {
    "other bits": (with_bits(8), "config.storage.prefix_entropy_bits was 5 and would become 8"),
    "another name": (
        merged(SOUND, {"config": {"cluster": {"name": "prod-b"}}}),
        "config.cluster.name was prod-a and would become prod-b",
    ),
    "another place": (
        merged(SOUND, {"config": {"storage": {"url": "s3://other"}}}),
        "config.storage.url was s3://bucket/kafka and would become s3://other",
    ),
    "another place for a topic": (
        merged(
            SOUND,
            {"config": {"storage": {"overrides": [{"topics": "a.*", "url": "s3://other"}]}}},
        ),
        "config.storage.overrides were [] and would become [a.*: s3://other]",
    ),
}


@pytest.mark.parametrize("case", OTHER_ARCHIVES)
def test_upgrade_to_another_archive_is_refused(case: str, tmp_path: Path) -> None:
    now, said = OTHER_ARCHIVES[case]
    code, err = upgrade(tmp_path, SOUND, now)
    assert code != 0
    assert said in err
    assert "acknowledgeOtherArchive: true" in err


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (SOUND, merged(with_bits(8), {"acknowledgeOtherArchive": True})),
        (SOUND, with_bits(5)),  # the default, given explicitly
        (SOUND, merged(SOUND, {"config": {"uploader": {"threads": 2}}})),
    ],
    ids=["acknowledged", "the same", "something else"],
)
def test_other_upgrade_is_accepted(before: Values, now: Values, tmp_path: Path) -> None:
    code, err = upgrade(tmp_path, before, now)
    assert code == 0, err
