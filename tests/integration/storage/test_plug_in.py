"""A plug-in that chooses the storage URL of topics, installed from a wheel."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.harness.archive_objects import file_store
from tests.harness.log_dir import LogDir
from tests.harness.sidecar import Sidecar, basic_settings, merged
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

WAIT = 60.0
MODULE = '''\
from pathlib import Path


class ByTeam:
    """A topic `team.name` is stored in the team's directory, once there is a file for the team."""

    def __init__(self, options):
        self.root = Path(options["root"])

    def url(self, topic):
        team, dot, _ = topic.partition(".")
        if not dot:
            return None
        (self.root / f"{team}.known").read_text()
        return f"file://{self.root}/{team}"

    def urls(self):
        return [f"file://{self.root}/{team}" for team in ("pay", "ship")]
'''
FILES = {
    "by_team.py": MODULE,
    "by_team-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: by-team\nVersion: 1.0\n",
    "by_team-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
    "Root-Is-Purelib: true\nTag: py3-none-any\n",
    "by_team-1.0.dist-info/entry_points.txt": "[sidetier.storage_endpoints]\n"
    "by-team = by_team:ByTeam\n",
}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with the content of the plug-in's wheel, as an installer creates it."""
    wheel = tmp_path / "by_team-1.0-py3-none-any.whl"
    record = "by_team-1.0.dist-info/RECORD"
    rows = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            rows.append(f"{name},sha256={digest.decode()},{len(text)}\n")
        archive.writestr(record, "".join([*rows, f"{record},,\n"]))
    target = tmp_path / "installed"
    uv = Path(sys.executable).parent / "uv"
    line = [
        str(uv),
        "pip",
        "install",
        "--target",
        str(target),
        "--no-deps",
        "--offline",
        str(wheel),
    ]
    subprocess.run(line, check=True, capture_output=True)
    return target


def test_topics_are_stored_where_the_plug_in_says(tmp_path: Path, installed: Path) -> None:
    """A topic whose URL fails to resolve waits; the other topics and the sidecar do not."""
    log_dir = LogDir(tmp_path / "logs")
    for topic in ("pay.orders", "ship.boxes", "other"):
        log_dir.create(topic).closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    teams = tmp_path / "teams"
    teams.mkdir()
    (teams / "pay.known").touch()
    store = file_store(tmp_path / "store")
    provider = {"name": "by-team", "options": {"root": str(teams)}}
    settings = merged(
        basic_settings([log_dir.path], store),
        {"leadership": {"source": "static"}, "storage": {"provider": provider}},
    )
    environment = {**store.environment, "PYTHONPATH": str(installed)}
    with_plug_in = replace(store, environment=environment)

    def logs_below(root: Path) -> list[str]:
        return sorted(path.name for path in root.rglob("*.log"))

    with Sidecar(tmp_path / "sidecar", settings, with_plug_in) as sidecar:
        wait_until(lambda: len(logs_below(teams / "pay")) == 2, WAIT, "the segments of pay.orders")
        wait_until(lambda: len(logs_below(tmp_path / "store")) == 2, WAIT, "those of other")
        sidecar.wait_for_event("store.unknown", topic="ship.boxes")
        assert not (teams / "ship").exists() or not logs_below(teams / "ship")
        (teams / "ship.known").touch()
        wait_until(lambda: len(logs_below(teams / "ship")) == 2, WAIT, "those of ship.boxes")
        assert sidecar.stop() == 0

    config = tmp_path / "sidetier.yaml"
    config.write_text(yaml.safe_dump(settings))
    line = [sys.executable, "-m", "sidetier.cli", "--config", str(config), "ls"]
    listed = subprocess.run(
        line, env={**os.environ, **environment}, check=True, capture_output=True, text=True
    ).stdout
    assert all(topic in listed for topic in ("pay.orders", "ship.boxes", "other"))
