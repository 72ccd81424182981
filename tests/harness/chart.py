"""The real helm on the chart, isolated from this machine's configuration."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from devtools.sandbox.chart_tools import helm, promtool

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "sidetier"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
RELEASE, NAMESPACE = "t", "kafka"
_SECONDS = 180

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ran:
    """Output of a program."""

    code: int
    out: str
    err: str


def run_helm(*words: str | os.PathLike[str], kubeconfig: Path | None = None) -> Ran:
    """Run helm once."""
    with tempfile.TemporaryDirectory(prefix="helm-") as home:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "KUBECONFIG": str(kubeconfig or Path(home, "none")),
        }
        return _run([helm(), *words], environment)


def run_promtool(*words: str | os.PathLike[str], given: str = "") -> Ran:
    """Run promtool once; `given` is its standard input."""
    return _run([promtool(), *words], dict(os.environ), given)


def _run(
    command: list[str | os.PathLike[str]], environment: Mapping[str, str], given: str = ""
) -> Ran:
    done = subprocess.run(
        command,
        env=dict(environment),
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def manifests(text: str) -> list[Manifest]:
    """Return the objects in helm's output."""
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


@cache
def rendered_text(values: Path) -> str:
    """Return what `helm template` renders for a values file."""
    ran = run_helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", values)
    assert ran.code == 0, ran.err
    return ran.out


def rendered(values: Path) -> list[Manifest]:
    """Return the objects for a values file; each caller gets a new copy."""
    return manifests(rendered_text(values))


def template(values: Mapping[str, Any], directory: Path, *more: str) -> Ran:
    """Run `helm template` with these values."""
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    return run_helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", file, *more)


def one(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the only object of a kind, or of a kind and name."""
    matching = [o for o in objects if o["kind"] == kind and name in ("", o["metadata"]["name"])]
    assert len(matching) == 1, f"{len(matching)} of kind {kind} {name}"
    return matching[0]


def pod_spec(manifest: Manifest) -> Manifest | None:
    """Return the pod specification of an object; None if it creates no pods."""
    spec: Manifest = manifest.get("spec", {})
    if manifest["kind"] == "Pod":
        return spec
    if manifest["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Manifest = spec.get("template", {})
    return template.get("spec")


def sidetier_containers(objects: list[Manifest]) -> list[Manifest]:
    """Return every container that runs Sidetier's image."""
    specs = [spec for spec in map(pod_spec, objects) if spec is not None]
    all_of = [c for spec in specs for c in (*spec.get("initContainers", ()), *spec["containers"])]
    return [container for container in all_of if "args" in container]
