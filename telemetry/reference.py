"""Generator of `docs/metrics.md` from the catalogues of metrics and alerts."""

import re
from typing import Final

from sidetier.telemetry.alerts import ALERTS, Alert
from sidetier.telemetry.catalogue import METRICS, REQUEST_SECONDS, RETRIES, Metric
from sidetier.telemetry.consumer_catalogue import CONSUMER_METRICS
from sidetier.telemetry.export_catalogue import EXPORT_METRICS
from sidetier.telemetry.mirror_catalogue import MIRROR_METRICS

_INTRODUCTION: Final = """\
# Metrics

This page is made from `telemetry/catalogue.py` by `make docs`.

`GET /metrics` on `http.host` and `http.port` (127.0.0.1, 9108) answers in the Prometheus text
format, or OpenMetrics where it is asked for, compressed where the client accepts gzip. Beside the
metrics below there are those of the process, such as `process_resident_memory_bytes`.

Series with the labels `topic` and `partition` exist for the partitions that this broker leads. With
more of them than `http.max_partition_series` the two labels are dropped, and the last column says
how the values become one.

| metric | type | labels | above the cap | |
|---|---|---|---|---|
"""

_ALARMS: Final = """
## What to alert on

The rules stand in `telemetry/alerts.py`, from where the chart and `helm/sidetier/files/alerts.yaml`
(a rule file of Prometheus) are made. Each has a page that says what to do.

| alert | severity | when | |
|---|---|---|---|
"""


_CONSUMER: Final = """
## Of a tiered consumer

They are in the registry that the application gives as `tiered.storage.metrics.registry`
([the tiered consumer](consumer.md)); consumers that share one are counted together.

| metric | type | labels | |
|---|---|---|---|
"""


_EXPORT: Final = """
## Of an export

`sidetier export ... --metrics-file PATH.prom` writes them after each round, for the textfile
collector of Prometheus' node exporter ([partitions that are held
back](export-files.md#partitions-that-are-held-back)).

| metric | type | labels | |
|---|---|---|---|
"""


_MIRROR: Final = """
## Of a mirror

`sidetier mirror --metrics-port PORT` serves them ([copies into another cluster](mirror.md)), and
so does `sidetier restore` ([an archive into a running cluster](restore.md)).

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
    mirror = _MIRROR + "".join(map(_consumer_row, MIRROR_METRICS))
    return _INTRODUCTION + rows + alarms + consumer + export + mirror


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
