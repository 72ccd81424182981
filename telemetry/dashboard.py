"""Grafana dashboard as JSON, which `make docs` writes into the chart.

The data source is a dashboard variable, so it fits any Prometheus. It shows one or all instances.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sidetier.telemetry import catalogue as names
from sidetier.telemetry.dashboard_panels import CHOSEN, SECTIONS, Panel, Section

UID: Final = "sidetier"
_WIDTH: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard's JSON."""
    return {
        "uid": UID,
        "title": "Sidetier",
        "tags": ["kafka", "sidetier"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": list(_variables())},
        "panels": list(_laid_out(SECTIONS)),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    info, lag = names.BUILD_INFO.name, names.LAG_BYTES.name
    yield _variable("job", f"label_values({info}, job)")
    yield _variable("instance", f'label_values({info}{{job=~"$job"}}, instance)')
    yield _variable("topic", f"label_values({lag}{{{CHOSEN}}}, topic)")


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(sections: Sequence[Section]) -> Iterator[dict[str, Any]]:
    """Yield the panels of each section, from left to right below the section's title."""
    top, number = 0, 0
    for title, panels in sections:
        number += 1
        position = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": position, "panels": []}
        top, left = top + 1, 0
        for panel in panels:
            if left + panel.width > _WIDTH:
                top, left = top + panel.height, 0
            number += 1
            position = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": position, **_panel(panel)}
            left += panel.width
        top += panels[-1].height


def _panel(panel: Panel) -> dict[str, Any]:
    # A stat panel queries the end of the time range only. For a whole range, Grafana would show
    # the last sample, and some series end when the problem is gone.
    instant = panel.kind == "stat"
    targets = [
        {
            "refId": chr(ord("A") + i),
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
        }
        for i, query in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": _thresholds(panel)},
            "overrides": [],
        },
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm_above is not None:
        steps.append({"color": "red", "value": panel.alarm_above})
    if panel.alarm_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.alarm_below}]
    return {"mode": "absolute", "steps": steps}
