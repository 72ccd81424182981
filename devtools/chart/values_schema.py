"""JSON schema of the chart's values: the configuration's schema, and what Kubernetes needs.

It is draft 7, which every Helm 3 reads. Values that Kubernetes itself defines (resources, affinity
and the like) are only checked to be a mapping or a list: the API server checks the rest.
"""

from collections.abc import Iterable
from typing import Any, Final

from devtools.chart.alerts import ALERTS
from sidetier.config.catalogue import json_schema

Schema = dict[str, Any]

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_TEXT: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
_SWITCH: Final[Schema] = {"type": "boolean"}
_MAPPING: Final[Schema] = {"type": "object"}
_MAPPINGS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_WORDS: Final[Schema] = {"type": "array", "items": _NAME}
_LABELS: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}
_OWN_LABELS: Final = (
    r"^(app\.kubernetes\.io/(name|instance|component|version|managed-by)|helm\.sh/chart)$"
)
_LABEL_NAME: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
"""Name of an object or volume: a DNS label, as the API server requires."""
_SHORT_NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^([a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?)?$",
}
"""Name with room for the suffixes that the chart adds; a longer one would be cut."""
_PATH: Final[Schema] = {"type": "string", "pattern": "^/"}
_DURATION: Final[Schema] = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}
_PREFERENCE: Final = "^(.*=)?(broker|store|[0-9]+(ms|s|m|h|d))$"
_PROBE: Final[Schema] = {
    "type": "object",
    "description": "A Kubernetes probe; without an action of its own it asks the sidecar.",
}

# Names of variables that hold a secret; `_PLACE_NAME` excepts names of where a secret is.
_SECRET_NAME: Final = "SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|PRIVATE_KEY|USER_INFO"  # noqa: S105 -- a pattern of names
_PLACE_NAME: Final = "_(FILE|PATH|DIR|URI|URL|NAME)$"
_VARIABLE: Final[Schema] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": _NAME, "value": _TEXT, "valueFrom": _MAPPING},
    "additionalProperties": False,
    "if": {
        "properties": {
            "name": {"allOf": [{"pattern": _SECRET_NAME}, {"not": {"pattern": _PLACE_NAME}}]}
        }
    },
    "then": {
        "required": ["valueFrom"],
        "properties": {"valueFrom": {"type": "object", "required": ["secretKeyRef"]}},
        "not": {"required": ["value"]},
    },
    "description": "Take a secret from a Secret with valueFrom.secretKeyRef, not with value.",
}


def values_schema() -> Schema:
    """Return the schema of `values.yaml` and of the values that override it."""
    config = json_schema()
    definitions = config.pop("$defs")
    for key in ("$schema", "title", "required"):  # the templates ask for required values by name
        config.pop(key, None)
    return {
        "$schema": _DRAFT,
        "title": "Values of the chart sidetier",
        "$defs": definitions,
        **_part(
            mode={"enum": ["sidecar", "nodeAgent", "jobs"]},
            config=config,
            logDirVolumes={"type": "array", "items": _log_dir_volume()},
            acknowledgeOtherArchive=_SWITCH,
            sidecar=_part(podSelector=_LABELS, readinessProbe=_SWITCH),
            nodeAgent=_part(updateStrategy=_MAPPING, hostNetwork=_SWITCH, dnsPolicy=_TEXT),
            backfill=_broker_jobs(args=_WORDS),
            hydrate=_broker_jobs(args=_WORDS, planVolume=_MAPPING),
            drill=_drill(),
            gc=_gc(),
            verify=_verify(),
            mirrors={
                "type": "object",
                "propertyNames": _LABEL_NAME,
                "additionalProperties": _mirror(),
            },
            serve=_serve(),
            fleet=_fleet(),
            cronJobs={
                "type": "object",
                "propertyNames": _LABEL_NAME,
                "additionalProperties": _cron_job(),
            },
            kafka=_kafka(),
            **_pods(),
            **_monitoring(),
            networkPolicy=_part(
                enabled=_SWITCH,
                ingressFrom=_MAPPINGS,
                egress={**_MAPPINGS, "type": ["array", "null"], "minItems": 1},
            ),
            tests=_part(enabled=_SWITCH),
            **{"global": _MAPPING},
        ),
    }


def _part(**properties: Schema) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _log_dir_volume() -> Schema:
    volume = _part(name=_LABEL_NAME, mountPath=_PATH, subPath=_NAME, hostPath=_PATH)
    return {**volume, "required": ["name", "mountPath"]}


def _broker_jobs(**more: Schema) -> Schema:
    """Return the schema of one Job for each broker."""
    broker = _part(name=_LABEL_NAME, claims=_LABELS, nodeSelector=_LABELS)
    return _part(
        enabled=_SWITCH,
        brokers={"type": "array", "items": {**broker, "required": ["name"]}},
        backoffLimit={"type": "integer", "minimum": 0},
        ttlSecondsAfterFinished={"type": ["integer", "null"], "minimum": 0},
        **more,
    )


def _drill() -> Schema:
    return _own_cron_job(volume=_MAPPING)


def _gc() -> Schema:
    tail_packs = _part(enabled=_SWITCH, schedule=_NAME, args=_WORDS)
    return _own_cron_job(tailPacks=tail_packs)


def _own_cron_job(**more: Schema) -> Schema:
    """Return the schema of a CronJob that has its own part of the values."""
    return _part(
        enabled=_SWITCH,
        schedule=_NAME,
        timeZone=_TEXT,
        args=_WORDS,
        image={"allOf": [_image()]},  # merged over the sidecar's image: no key has a default here
        extraEnv={"type": "array", "items": _VARIABLE},
        resources=_MAPPING,
        activeDeadlineSeconds={"type": "integer", "minimum": 1},
        **more,
    )


def _verify() -> Schema:
    return _part(
        enabled=_SWITCH,
        schedule=_NAME,
        timeZone=_TEXT,
        args=_WORDS,
        extraEnv={"type": "array", "items": _VARIABLE},
        extraVolumes=_MAPPINGS,
        extraVolumeMounts=_MAPPINGS,
        resources=_MAPPING,
        activeDeadlineSeconds={"type": "integer", "minimum": 1},
    )


def _mirror() -> Schema:
    mirror = _part(
        source=_client(),
        target={**_client(), "required": ["bootstrap.servers"]},
        sourceSecret=_NAME,
        targetSecret=_NAME,
        topics={**_WORDS, "minItems": 1},
        exclude=_WORDS,
        rename={"type": "array", "items": {"type": "string", "pattern": "="}},
        workers={"type": "integer", "minimum": 0},
        args=_WORDS,
        image={"allOf": [_image()]},
        resources=_MAPPING,
        extraEnv={"type": "array", "items": _VARIABLE},
    )
    return {**mirror, "required": ["target", "topics"]}


def _serve() -> Schema:
    count: Schema = {"type": "integer", "minimum": 1}
    return _part(
        enabled=_SWITCH,
        replicas={"type": "integer", "minimum": 0},
        port=_PORT,
        advertise={"type": "string", "pattern": "^(.+:[0-9]+)?$"},
        memory={"type": "string", "pattern": "^[1-9][0-9]*(MiB|GiB)$"},
        resources=_MAPPING,
        maxConnections=count,
        maxBytesPerSecond={"type": "string", "pattern": "^([0-9.]+ ?([kKMGT]i?B|B)?)?$"},
        live=_part(
            bootstrapServers=_TEXT,
            propertiesSecret=_TEXT,
            prefer={"type": "array", "items": {"type": "string", "pattern": _PREFERENCE}},
            window={"type": "string", "pattern": _DURATION["pattern"] + "|^$"},
        ),
        groups=_part(
            mode={"enum": ["", "none", "local", "relay"]},
            bootstrapServers=_TEXT,
            propertiesSecret=_TEXT,
        ),
        tls=_part(secretName=_TEXT, clientCa=_TEXT),
        users=_part(secretName=_TEXT, key=_NAME),
        insecure=_SWITCH,
        extraArgs=_WORDS,
        image={"allOf": [_image()]},
        extraEnv={"type": "array", "items": _VARIABLE},
        service=_part(
            type={"enum": ["ClusterIP", "LoadBalancer"]},
            annotations=_LABELS,
            ipFamilyPolicy={"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]},
        ),
        ingressFrom=_MAPPINGS,
        autoscaling=_part(
            enabled=_SWITCH,
            minReplicas=count,
            maxReplicas=count,
            targetCPUUtilizationPercentage=count,
        ),
        terminationGracePeriodSeconds=count,
    )


def _fleet() -> Schema:
    return _part(
        enabled=_SWITCH,
        port=_PORT,
        insecure=_SWITCH,
        resources=_MAPPING,
        extraArgs=_WORDS,
        extraEnv={"type": "array", "items": _VARIABLE},
        service=_part(annotations=_LABELS),
        ingressFrom=_MAPPINGS,
    )


def _client() -> Schema:
    """Return the schema of a Kafka client's properties, in librdkafka's names."""
    return {
        "type": "object",
        "additionalProperties": {"type": ["string", "integer", "boolean"]},
        "patternProperties": {
            "password|secret|token": {
                "type": "string",
                "pattern": "^(env:.|file:/.)",
                "description": "Take a secret from a Secret with env:NAME or file:/path.",
            }
        },
    }


def _cron_job() -> Schema:
    job = _part(
        schedule=_NAME,
        timeZone=_NAME,
        args={**_WORDS, "minItems": 1},
        suspend=_SWITCH,
        concurrencyPolicy={"enum": ["Allow", "Forbid", "Replace"]},
        successfulJobsHistoryLimit={"type": "integer", "minimum": 0},
        failedJobsHistoryLimit={"type": "integer", "minimum": 0},
        startingDeadlineSeconds={"type": "integer", "minimum": 0},
        activeDeadlineSeconds={"type": "integer", "minimum": 1},
        backoffLimit={"type": "integer", "minimum": 0},
        command={**_WORDS, "minItems": 1},
        image=_image(),
        resources=_MAPPING,
        extraEnv={"type": "array", "items": _VARIABLE},
        extraVolumes=_MAPPINGS,
        extraVolumeMounts=_MAPPINGS,
    )
    args_or_command = [{"required": ["args"]}, {"required": ["command"]}]
    return {**job, "required": ["schedule"], "anyOf": args_or_command}


def _image() -> Schema:
    return _part(
        repository=_TEXT,  # empty by default: the templates ask for it by name
        tag=_TEXT,
        digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    )


def _kafka() -> Schema:
    return _part(
        enabled=_SWITCH,
        image=_image(),
        replicas={"type": "integer", "minimum": 1, "maximum": 9},
        clusterId={"type": "string", "pattern": "^[A-Za-z0-9_-]{22}$"},
        storage=_part(size=_NAME, className=_TEXT),
        extraEnv={"type": "array", "items": _VARIABLE},
        resources=_MAPPING,
        podSecurityContext=_MAPPING,
        terminationGracePeriodSeconds={"type": "integer", "minimum": 1},
    )


def _pods() -> dict[str, Schema]:
    return {
        "nameOverride": _SHORT_NAME,
        "fullnameOverride": _SHORT_NAME,
        "image": _image(),
        "imagePullSecrets": _MAPPINGS,
        "serviceAccount": _part(create=_SWITCH, annotations=_LABELS, name=_TEXT),
        "commonLabels": {
            **_LABELS,
            "propertyNames": {"not": {"pattern": _OWN_LABELS}},
            "description": "Without the labels that the chart sets itself.",
        },
        "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
        "podAnnotations": _LABELS,
        "podLabels": _LABELS,
        "podSecurityContext": _MAPPING,
        "securityContext": _MAPPING,
        "resources": _MAPPING,
        "nodeSelector": _LABELS,
        "tolerations": _MAPPINGS,
        "affinity": _MAPPING,
        "topologySpreadConstraints": _MAPPINGS,
        "priorityClassName": _TEXT,
        "terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "startupProbe": _PROBE,
        "extraEnv": {"type": "array", "items": _VARIABLE},
        "extraEnvFrom": _MAPPINGS,
        "extraVolumes": _MAPPINGS,
        "extraVolumeMounts": _MAPPINGS,
    }


def _alert(thresholds: Iterable[str]) -> Schema:
    alert = _part(enabled=_SWITCH, expr=_NAME, severity=_NAME, **{"for": _DURATION})
    names = list(thresholds)
    if names:
        threshold = {"type": "integer", "minimum": 1}
        thresholds_schema = _part(**dict.fromkeys(names, threshold))
        alert["properties"]["thresholds"] = {**thresholds_schema, "required": names}
    return alert


def _monitoring() -> dict[str, Schema]:
    monitor = {
        "enabled": _SWITCH,
        "labels": _LABELS,
        "interval": _DURATION,
        "scrapeTimeout": _DURATION,
        "authorization": _MAPPING,
        "relabelings": _MAPPINGS,
        "metricRelabelings": _MAPPINGS,
    }
    return {
        "service": _part(enabled=_SWITCH, annotations=_LABELS),
        "podMonitor": _part(**monitor),
        "serviceMonitor": _part(**monitor),
        "prometheusRule": _part(
            enabled=_SWITCH,
            labels=_LABELS,
            runbookUrl={"type": "string", "pattern": "^(https?://.*)?$"},
            alertLabels=_LABELS,
            alerts=_part(**{alert.name: _alert(alert.thresholds) for alert in ALERTS}),
        ),
        "dashboard": _part(enabled=_SWITCH, labels=_LABELS, annotations=_LABELS),
    }
