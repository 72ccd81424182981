"""Properties of the image visible without building it; its steps run in tests/integration/image."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from sidetier import __version__
from sidetier.brokers.cache import cache_root
from sidetier.brokers.kafka import JARS, KAFKA_4_3
from sidetier.config.model import HttpConfig
from tests.harness.dockerfile import ROOT, Instruction, Stage, read_stages

STAGES = read_stages()
FINAL = STAGES[-1]
BUILDER = STAGES[0]
TARGET = "/opt/sidetier"


def _runs() -> list[Instruction]:
    return [run for stage in STAGES for run in stage.all("RUN")]


def _copied_from_the_tree() -> list[str]:
    copies = [copy for stage in STAGES for copy in stage.all("COPY")]
    return [word for copy in copies if not copy.flag("from") for word in copy.words[:-1]]


def _local(program: str, run: Instruction) -> Path:
    """The file of this repository that a RUN executes, from the build context or through a bind
    mount.
    """
    mount = dict(part.split("=", 1) for part in (run.flag("mount") or "").split(",") if part)
    if mount.get("type") == "bind" and program.startswith(mount["target"] + "/"):
        return ROOT / mount["source"] / program.removeprefix(mount["target"] + "/")
    return ROOT / program


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name or "final")
def test_each_base_is_an_exact_slim_release_of_our_python(stage: Stage) -> None:
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", stage.base)


def test_image_runs_as_a_numeric_user_that_is_not_root() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", FINAL.last("USER").rest)


def test_entry_point_receives_signals_without_a_shell() -> None:
    assert FINAL.last("ENTRYPOINT").exec_form() == [f"{TARGET}/bin/sidetier"]
    assert FINAL.last("CMD").exec_form()[0] == "run"
    assert not FINAL.all("SHELL")
    assert not FINAL.all("STOPSIGNAL")


@pytest.mark.parametrize("run", _runs(), ids=lambda run: run.rest)
def test_every_step_is_one_of_the_build_script(run: Instruction) -> None:
    program, step, *_ = run.exec_form()
    script = _local(program, run)
    assert script == ROOT / "docker" / "build.sh"
    assert os.access(script, os.X_OK)
    assert f"\n{step}() {{" in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("source", _copied_from_the_tree())
def test_copied_files_exist_and_are_sent_to_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert f"!{source.partition('/')[0]}" in lines


def test_every_package_is_copied() -> None:
    buffers = {path.name for path in (ROOT / "src" / "sidetier").iterdir() if path.is_symlink()}
    assert buffers
    assert buffers <= set(_copied_from_the_tree())


def test_dependencies_come_from_the_selected_lock_file(tmp_path: Path) -> None:
    (argument,) = (a.rest for a in BUILDER.all("ARG"))
    name, _, default = argument.partition("=")
    assert (name, default) == ("REQUIREMENTS", "runtime")
    python, said = tmp_path / "python", tmp_path / "said"
    python.write_text(f'#!/bin/sh\necho "$*" >> {said}\n', encoding="utf-8")
    python.chmod(0o755)
    for given, lock in (({}, "runtime"), ({name: "consumer"}, "consumer")):
        said.write_text("", encoding="utf-8")
        subprocess.run(
            [ROOT / "docker" / "build.sh", "dependencies", tmp_path / "target"],
            env={"PATH": os.environ["PATH"], "PYTHON": str(python), **given},
            check=True,
            timeout=20,
        )
        *_, install = said.read_text(encoding="utf-8").splitlines()
        assert install.endswith(f"--require-hashes -r {ROOT}/requirements/{lock}.txt")


def pinned(lock: str) -> set[str]:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==(\S+)", text, re.MULTILINE)  # without extras
    return {f"{name}=={version}" for name, version in pins}


def test_consumer_lock_file_extends_the_runtime_lock_file() -> None:
    assert pinned("runtime") < pinned("consumer")
    more = {line.partition("==")[0] for line in pinned("consumer") - pinned("runtime")}
    registry_client = {
        *("anyio", "attrs", "authlib", "cachetools", "certifi"),
        *("googleapis-common-protos", "h11", "httpcore2", "httpx2", "httpx2-jsfetch", "idna"),
        *("joserfc", "protobuf", "truststore"),
    }
    assert more == {"babel", "cramjam", "fastavro", "numpy", "pyarrow"} | registry_client


def test_final_stage_copies_only_the_environment_from_the_builder() -> None:
    taken = [copy for copy in FINAL.all("COPY") if copy.flag("from")]
    assert [(copy.flag("from"), copy.words) for copy in taken] == [(BUILDER.name, [TARGET, TARGET])]
    made = [word for run in BUILDER.all("RUN") for word in run.exec_form()]
    assert TARGET in made


def test_health_check_uses_the_default_port() -> None:
    check = FINAL.last("HEALTHCHECK")
    assert check.words[0] == "CMD"
    command = Instruction("CMD", (), check.rest.removeprefix("CMD")).exec_form()
    script = next(word for word in command if word.endswith(".py"))
    copy = next(copy for copy in FINAL.all("COPY") if copy.words[-1] == script)
    text = (ROOT / copy.words[0]).read_text(encoding="utf-8")
    port = HttpConfig().port
    assert f"\nDEFAULT_PORT = {port}\n" in text
    assert FINAL.last("EXPOSE").rest == str(port)


LABELS = dict(re.findall(r'([\w.]+)="([^"]*)"', FINAL.last("LABEL").rest))


def test_labels_describe_the_image() -> None:
    prefix = "org.opencontainers.image."
    assert LABELS[f"{prefix}version"] == __version__
    assert LABELS[f"{prefix}licenses"] == "Apache-2.0"
    told = {
        *("title", "description", "version", "revision", "created", "licenses"),
        *("url", "source", "documentation", "base.name", "base.digest"),
    }
    assert set(LABELS) == {f"{prefix}{name}" for name in told}


def test_labels_have_the_description_and_addresses_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "org.opencontainers.image."
    assert LABELS[f"{prefix}description"] == project["description"]
    for label, name in (
        ("url", "Homepage"),
        ("source", "Repository"),
        ("documentation", "Documentation"),
    ):
        assert LABELS[f"{prefix}{label}"] == project["urls"][name]


def test_variables_in_the_labels_are_declared_in_their_stage() -> None:
    used = set(re.findall(r"\{(\w+)\}", " ".join(LABELS.values())))
    assert used == {"REVISION", "CREATED", "BASE_IMAGE", "BASE_DIGEST"}
    assert used <= {argument.rest.partition("=")[0] for argument in FINAL.all("ARG")}


def test_no_stage_installs_system_packages() -> None:
    assert not [run.rest for run in _runs() if "apt" in run.rest or "apk" in run.rest]


def test_python_writes_no_bytecode_at_run_time() -> None:
    assert "PYTHONDONTWRITEBYTECODE=1" in FINAL.last("ENV").words


def test_the_image_for_drills_has_kafka_where_the_drill_looks_for_it() -> None:
    stages = read_stages(ROOT / "docker" / "drill.Dockerfile")
    bases = {stage.name: stage.base for stage in stages}
    assert bases["kafka"] == f"apache/kafka:{KAFKA_4_3}"
    variables = dict(word.split("=", 1) for word in stages[-1].last("ENV").words if "=" in word)
    folder = cache_root(variables) / "jars" / JARS[KAFKA_4_3].name
    (copied,) = next(stage for stage in stages if stage.name == "cache").all("COPY")
    assert copied.words == ["/opt/kafka/libs", str(folder)]
    assert copied.flag("from") == "kafka"
    (marked,) = next(stage for stage in stages if stage.name == "cache").all("RUN")
    assert marked.exec_form() == ["touch", f"{folder}/.complete"]
    assert variables["JAVA_HOME"] in stages[-1].all("COPY")[0].words
    assert stages[-1].last("HEALTHCHECK").rest == "NONE"
