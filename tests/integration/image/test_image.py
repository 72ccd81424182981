"""The steps and commands of the image, without a container engine.

The tests copy, run and start what the Dockerfile copies, runs and starts, with /opt/sidetier and
similar paths in a temporary directory. The sidecar runs as the Dockerfile's user, as process 1 of
its own process namespace, on a read-only root file system.
"""

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sidetier import __version__
from sidetier.brokers.ports import free_port
from sidetier.brokers.processes import Command, ManagedProcess
from sidetier.config.uploader import UploaderConfig
from tests.harness.dockerfile import ROOT, Instruction, Stage, read_stages
from tests.harness.exported_files import rows_of
from tests.harness.log_dir import LogDir
from tests.harness.stored_log import read_records
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

STAGES = read_stages()
FINAL = STAGES[-1]
BASE_PYTHON = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
"""The base interpreter of the virtual environment that runs the tests."""
BUILD_SECONDS = 280
START_SECONDS = 60.0
GRACE_SECONDS = UploaderConfig().shutdown_grace + 5
"""The grace period that the guide recommends for a supervisor."""

READ_ONLY = """
set -eu
image=$1 writable=$2 closed=$3 prefix=$4 aside=$5
shift 5
mount --make-rprivate /
if [ -n "$closed" ]; then
  mount --bind "$prefix" "$aside"
  mount -t tmpfs -o mode=755 none "$closed"
  mkdir -p "$prefix"
  mount --bind "$aside" "$prefix"
  mount -o remount,ro "$closed"
fi
mount --bind "$writable" "$writable"
mount --bind "$image" "$image"
mount -o remount,bind,ro "$image"
mount -o remount,bind,ro /
if touch "$image/written" 2>/dev/null; then
  echo "$image is not read-only" >&2
  exit 70
fi
exec "$@"
"""


def _closed_to_others(path: Path) -> str:
    """The topmost directory above `path` that only its owner may enter, or nothing. An interpreter
    below it (for example in root's home) is visible in the container without its siblings.
    """
    above = reversed(path.resolve().parents)
    return next((str(folder) for folder in above if not folder.stat().st_mode & 0o001), "")


@dataclass(frozen=True, slots=True)
class Image:
    """The result of the Dockerfile's steps, below one directory that every user may read."""

    root: Path

    @property
    def target(self) -> Path:
        """The equivalent of /opt/sidetier in the image."""
        return self.root / "image" / "opt" / "sidetier"

    @property
    def wheel(self) -> Path:
        """The only wheel."""
        (wheel,) = (self.root / "wheels").iterdir()
        return wheel

    def here(self, words: list[str], **others: str) -> list[str]:
        """A command of the Dockerfile with its paths in this directory."""
        places = {
            "/opt/sidetier": str(self.target),
            "/wheels": str(self.root / "wheels"),
            "/docker/": str(self.root / "src" / "docker") + "/",
            **others,
        }
        return [_replaced(word, places) for word in words]

    def run(self, *words: str) -> str:
        """Run a program of the image; return its output."""
        done = subprocess.run(
            self.here(list(words)), capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout


def _replaced(word: str, places: Mapping[str, str]) -> str:
    for there, here in places.items():
        if word.startswith(there):
            return here + word.removeprefix(there)
    return word


def _copy(copy: Instruction, source: Path, target: Path) -> None:
    *names, place = copy.words
    for name in names:
        into = target / place / name if place.endswith("/") else target / place
        into.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source / name, into, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source / name, into)


def _build(stage: Stage, image: Image, environment: Mapping[str, str]) -> None:
    """Execute a stage's steps in order."""
    work = image.root / "src"
    for step in stage.instructions:
        if step.name == "COPY" and step.flag("from") is None and not step.words[-1].startswith("/"):
            _copy(step, ROOT, work)
        elif step.name == "COPY" and step.flag("from") is None:
            source, place = step.words
            shutil.copy2(ROOT / source, image.here([place])[0])
        elif step.name == "RUN":
            done = subprocess.run(
                image.here(step.exec_form()),
                cwd=work,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
                timeout=BUILD_SECONDS,
            )
            assert done.returncode == 0, f"{step.rest}\n{done.stdout}{done.stderr}"


@contextmanager
def _built(**arguments: str) -> Iterator[Image]:
    """Build the first stage with these build arguments, outside pytest's directories, which only
    their owner may enter.
    """
    with tempfile.TemporaryDirectory(prefix="sidetier-image-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        made = Image(root)
        made.target.parent.mkdir(parents=True)
        _build(STAGES[0], made, {"PYTHON": str(BASE_PYTHON), **arguments})
        yield made


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The content of the image."""
    with _built() as made:
        root = made.root
        # The last stage removes pip from its interpreter, so the test uses a copy of the
        # interpreter.
        copy = root / "interpreter"
        subprocess.run([BASE_PYTHON, "-m", "venv", copy], check=True, timeout=300)
        _build(
            FINAL,
            made,
            {"PYTHON": f"{copy}/bin/python", "PYTHONPYCACHEPREFIX": str(root / "bytecode")},
        )
        yield made


def test_wheel_contains_only_the_package(image: Image) -> None:
    with zipfile.ZipFile(image.wheel) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    record = f"sidetier-{__version__}.dist-info/"
    assert {name for name in names if not name.startswith(("sidetier/", record))} == set()
    assert "sidetier/py.typed" in names
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]
    copied = image.root / "src" / "src" / "sidetier"
    buffers = [path for path in copied.iterdir() if path.is_symlink()]
    assert buffers
    modules = {
        f"sidetier/{room.name}/{module.relative_to(room.resolve())}"
        for room in buffers
        for module in room.resolve().rglob("*.py")
    }
    assert modules - names == set()


def test_command_is_installed_and_prints_its_version(image: Image) -> None:
    said = image.run(*FINAL.last("ENTRYPOINT").exec_form(), "--version")
    assert said == f"sidetier, version {__version__}\n"


def test_no_build_tools_are_left(image: Image) -> None:
    find = "import importlib.util as u; print(*(n for n in {names} if u.find_spec(n)))"
    names = ("pip", "setuptools", "wheel", "hatchling")
    assert image.run("/opt/sidetier/bin/python", "-c", find.format(names=names)) == "\n"
    assert not list((image.root / "interpreter").glob("lib/python*/site-packages/pip"))


def test_bytecode_is_complete_and_not_checked_against_sources(image: Image) -> None:
    packages = next(image.target.glob("lib/python*/site-packages"))
    sources = [path for path in packages.rglob("*.py") if "sidetier" in path.parts]
    assert sources
    for source in sources:
        compiled = Path(importlib.util.cache_from_source(str(source)))
        assert int.from_bytes(compiled.read_bytes()[4:8], "little") == 1, source  # PEP 552
    standard = image.root / "bytecode"
    assert list(standard.rglob("json/decoder.*.pyc"))


def test_consumer_image_reads_and_exports_its_archive(tmp_path: Path) -> None:
    """Built with `--build-arg REQUIREMENTS=consumer`."""
    log_dir = LogDir(tmp_path / "logs")
    partition = log_dir.create("t")
    bases = partition.closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    config, lake = tmp_path / "sidetier.yaml", tmp_path / "lake"
    settings = {
        "cluster": {"name": "image"},
        "log_dirs": [str(log_dir)],
        "storage": {"url": f"file://{tmp_path}/store"},
        "leadership": {"source": "static"},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    with _built(REQUIREMENTS="consumer") as image:
        sidetier = [*FINAL.last("ENTRYPOINT").exec_form(), "--config", str(config)]
        image.run(*sidetier, "backfill", "--offline")
        lines = image.run(*sidetier, "consume", "t").splitlines()
        image.run(*sidetier, "export", "files", "t", "--into", lake.as_uri())
    records = [
        record for base in bases for record in read_records(partition.written[base], f"{base}.log")
    ]
    read = [json.loads(line) for line in lines]
    wanted = [(offset, record.value) for offset, record in records]
    assert len(wanted) == 30
    assert [(row["offset"], _bytes(row["value"])) for row in read] == wanted
    (exported,) = lake.rglob("t+0+*.parquet")
    rows = rows_of(exported.name, exported.read_bytes())
    assert [(row["offset"], row["value"]) for row in rows] == wanted


def _bytes(value: object) -> bytes | None:
    """The bytes of a value in the output of `sidetier consume`."""
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else None


def test_runtime_image_names_the_missing_extra(image: Image, tmp_path: Path) -> None:
    config = tmp_path / "sidetier.yaml"
    settings = {
        "cluster": {"name": "image"},
        "log_dirs": [str(tmp_path / "logs")],
        "storage": {"url": f"file://{tmp_path}/store"},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    program = image.here(FINAL.last("ENTRYPOINT").exec_form())
    done = subprocess.run(
        [*program, "--config", config, "consume", "t"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pip install 'sidetier[consumer]'" in done.stderr


@dataclass(frozen=True, slots=True)
class Container:
    """The sidecar, started as by a container engine."""

    process: ManagedProcess
    store: Path
    log_dir: LogDir
    environment: Mapping[str, str]

    def healthy(self, image: Image) -> bool:
        """Return the result of the Dockerfile's HEALTHCHECK."""
        check = FINAL.last("HEALTHCHECK").rest.removeprefix("CMD")
        words = image.here(Instruction("CMD", (), check).exec_form())
        done = subprocess.run(
            words,
            env={**os.environ, **self.environment},
            capture_output=True,
            check=False,
            timeout=120,
        )
        return done.returncode == 0


@pytest.fixture
def container(image: Image) -> Iterator[Container]:
    """The sidecar over a log dir, with the Dockerfile's user and a read-only root."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a root read-only and take another user's number")
    place = Path(tempfile.mkdtemp(prefix="run-", dir=image.root))
    place.chmod(0o755)
    user, group = FINAL.last("USER").rest.split(":")
    store, aside = place / "store", place / "interpreter"
    store.mkdir()
    aside.mkdir()
    os.chown(store, int(user), int(group))
    log_dir = LogDir(place / "logs")
    log_dir.create("t").closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    config = place / "sidetier.yaml"
    settings = {
        "cluster": {"name": "image"},
        "log_dirs": [str(log_dir)],
        "storage": {"url": f"file://{store}", "prefix_entropy_bits": 0},
        "leadership": {"source": "static"},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    # The environment contains only the variables of the Dockerfile.
    variables = (word.split("=", 1) for word in FINAL.last("ENV").words)
    environment = {
        **{name: value for name, value in variables if name != "PATH"},
        "PATH": f"{image.target}/bin:/usr/bin:/bin",
        "SIDETIER_HTTP__PORT": str(free_port()),
    }
    command = [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
        *("sh", "-c", READ_ONLY, "sh", str(image.root / "image"), str(store)),
        *(_closed_to_others(BASE_PYTHON), str(Path(sys.base_prefix).resolve()), str(aside)),
        *("setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs"),
        *("--inh-caps=-all", "--bounding-set=-all"),
        *("env", "-i", *(f"{name}={value}" for name, value in environment.items())),
        *FINAL.last("ENTRYPOINT").exec_form(),
        *FINAL.last("CMD").exec_form(),
    ]
    words = image.here(command, **{"/etc/sidetier/sidetier.yaml": str(config)})
    started = ManagedProcess(Command("container", words, place / "log", environment))
    with started:
        started.start()
        yield Container(started, store, log_dir, environment)


def test_sidecar_runs_read_only_and_unprivileged_until_sigterm(
    image: Image, container: Container
) -> None:
    process = container.process
    process.wait_until(lambda: container.healthy(image), START_SECONDS)
    archive = container.store / "image" / "t-0"
    for base in (0, 10, 20):
        path = archive / f"{base:020}.log"
        wait_until(path.exists, START_SECONDS, path.name)
        stored = path.read_bytes()
        assert stored == next(iter(container.log_dir.partitions.values())).written[base]
    process.terminate()
    assert process.wait(GRACE_SECONDS) == 0, process.log_tail()
    assert "daemon.stopped" in process.log_tail()
    assert not container.healthy(image)
