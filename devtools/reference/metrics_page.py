"""Generator of `docs/metrics.md` from the catalogues of metrics and alerts."""

import re
from typing import Final

from devtools.chart.alerts import ALERTS, Alert
from sidetier.telemetry.catalogue import METRICS, REQUEST_SECONDS, RETRIES, Metric
from sidetier.telemetry.consumer_catalogue import CONSUMER_METRICS
from sidetier.telemetry.endpoint_catalogue import ENDPOINT_METRICS
from sidetier.telemetry.export_catalogue import EXPORT_METRICS
from sidetier.telemetry.gc_catalogue import GC_METRICS
from sidetier.telemetry.mirror_catalogue import MIRROR_METRICS
from sidetier.telemetry.verify_catalogue import VERIFY_METRICS

_INTRODUCTION: Final = """\
# Metrics

`make docs` generates this page from `telemetry/catalogue.py`.

`GET /metrics` on `http.host` and `http.port` (127.0.0.1, 9108) answers in the Prometheus text
format, or in OpenMetrics if the client requests it, and compressed if the client accepts gzip. The
response also has metrics of the process, such as `process_resident_memory_bytes`.

Series with the labels `topic` and `partition` exist for the partitions that this broker leads. With
more partitions than `http.max_partition_series`, the two labels are dropped, and the values of all
partitions are combined as in the column "above the cap".

| metric | type | labels | above the cap | |
|---|---|---|---|---|
"""

_ALARMS: Final = """
## What to alert on

The rules are in `devtools/chart/alerts.py`, from which `make docs` generates those of the chart
and `helm/sidetier/files/alerts.yaml` (a rule file for Prometheus). Each rule has a runbook page.

| alert | severity | when | |
|---|---|---|---|
"""


_CONSUMER: Final = """
## Metrics of a tiered consumer

The application passes the registry as `tiered.storage.metrics.registry` ([the tiered
consumer](consumer.md)). Consumers that share a registry are counted together.

| metric | type | labels | |
|---|---|---|---|
"""


_EXPORT: Final = """
## Metrics of an export

`sidetier export ... --metrics-file PATH.prom` writes them after each run, for the textfile
collector of Prometheus' node exporter ([partitions that are held
back](export-files.md#partitions-that-are-held-back)).

| metric | type | labels | |
|---|---|---|---|
"""


_GC: Final = """
## Metrics of gc

`sidetier gc --metrics-file PATH.prom` writes them at the end of a run, for the textfile collector
of Prometheus' node exporter ([retention on the store](gc.md)).

| metric | type | labels | |
|---|---|---|---|
"""


_MIRROR: Final = """
## Metrics of a mirror

`sidetier mirror --metrics-port PORT` ([copies into another cluster](mirror.md)) and
`sidetier restore` ([an archive into a running cluster](restore.md)) serve these metrics.

| metric | type | labels | |
|---|---|---|---|
"""


_VERIFY: Final = """
## Metrics of a verification

`sidetier verify --metrics-file PATH.prom` writes them at the end of a run, for the textfile
collector of Prometheus' node exporter ([checks of the archive](verify.md)).

| metric | type | labels | |
|---|---|---|---|
"""


_ENDPOINT: Final = """
## Metrics of the Kafka endpoint

`sidetier serve --metrics-port PORT` ([the Kafka endpoint](serve.md)) serves these
metrics.

| metric | type | labels | |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the text of `docs/metrics.md`."""
    rows = "".join(_row(metric) for metric in METRICS)
    alarms = _ALARMS + "".join(_alarm(alert) for alert in ALERTS)
    consumers = (*CONSUMER_METRICS, REQUEST_SECONDS, RETRIES)
    consumer = _CONSUMER + "".join(map(_consumer_row, consumers))
    export = _EXPORT + "".join(map(_consumer_row, EXPORT_METRICS))
    gc = _GC + "".join(map(_consumer_row, GC_METRICS))
    mirror = _MIRROR + "".join(map(_consumer_row, MIRROR_METRICS))
    verify = _VERIFY + "".join(map(_consumer_row, VERIFY_METRICS))
    endpoint = _ENDPOINT + "".join(map(_consumer_row, ENDPOINT_METRICS))
    commands = export + gc + mirror + verify
    return _INTRODUCTION + rows + alarms + consumer + commands + endpoint


def _consumer_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |\n"


def _alarm(alert: Alert) -> str:
    page = alert.runbook.removeprefix("docs/")
    lasts = "" if alert.lasts == "0m" else f", for {alert.lasts}"
    when = f"`{alert.expr}`{lasts}".replace("|", "\\|")
    return f"| [{alert.name}]({page}) | {alert.severity} | {when} | {_plain(alert.summary)} |\n"


def _plain(summary: str) -> str:
    """Replace Prometheus' templates with `<label>`."""
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"<\1>", summary)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    above = metric.above or ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {above} | {metric.help} |\n"
