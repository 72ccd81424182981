"""Parts of a release; its files are built in tests/integration/devtools/test_release.py."""

import gzip
import io
import os
import re
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from devtools.release import artifacts, check, licences
from devtools.release.artifacts import ReleaseError, Source
from devtools.release.licences import Licence
from sidetier import __version__

ROOT = Path(__file__).parents[3]
EPOCH = 1_700_000_000
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def package(path: Path, names: list[str], mtime: int) -> Path:
    with tarfile.open(path, "w:gz") as files:
        for name in names:
            entry = tarfile.TarInfo(name)
            content = f"content of {name}".encode()
            entry.size, entry.mtime, entry.uname = len(content), mtime, f"user-{mtime}"
            files.addfile(entry, io.BytesIO(content))
    return path


def test_repacked_package_depends_only_on_names_contents_and_time(tmp_path: Path) -> None:
    first = package(tmp_path / "a.tgz", ["c/values.yaml", "c/Chart.yaml"], 1)
    second = package(tmp_path / "b.tgz", ["c/Chart.yaml", "c/values.yaml"], 2)
    made = [tmp_path / "first.tgz", tmp_path / "second.tgz"]
    artifacts.repack(first, made[0], EPOCH)
    artifacts.repack(second, made[1], EPOCH)
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as files:
        entries = files.getmembers()
        content = files.extractfile("c/values.yaml")
        assert content is not None
        assert content.read() == b"content of c/values.yaml"
    assert [entry.name for entry in entries] == ["c/Chart.yaml", "c/values.yaml"]
    assert {(entry.mtime, entry.mode, entry.uname) for entry in entries} == {(EPOCH, 0o644, "")}
    assert int.from_bytes(made[0].read_bytes()[4:8], "little") == EPOCH
    gzip.decompress(made[0].read_bytes())


def tree(directory: Path, *, chart: str = "1.2.3", label: str = "1.2.3") -> Path:
    (directory / "src" / "sidetier").mkdir(parents=True)
    (directory / "helm" / "sidetier").mkdir(parents=True)
    (directory / "src/sidetier/__init__.py").write_text('__version__ = "1.2.3"\n')
    about = f'version: {chart}\nappVersion: "1.2.3"\n'
    (directory / "helm/sidetier/Chart.yaml").write_text(about)
    (directory / "Dockerfile").write_text(f'LABEL org.opencontainers.image.version="{label}" \\\n')
    return directory


def test_version_is_the_same_in_package_chart_and_image() -> None:
    assert artifacts.version_of(ROOT) == __version__
    example = (ROOT / "helm/sidetier/examples/bitnami-kafka.yaml").read_text(encoding="utf-8")
    assert f"/sidetier:{__version__}\n" in example


@pytest.mark.parametrize(
    ("versions", "place"),
    [
        ({"chart": "1.2.4"}, "version in helm/sidetier/Chart.yaml: 1.2.4"),
        ({"label": "1.2.4"}, "label of the Dockerfile: 1.2.4"),
    ],
)
def test_different_versions_are_refused(
    versions: dict[str, str], place: str, tmp_path: Path
) -> None:
    assert artifacts.version_of(tree(tmp_path / "same")) == "1.2.3"
    with pytest.raises(ReleaseError, match=re.escape(place)):
        artifacts.version_of(tree(tmp_path / "other", **versions))


def test_directory_without_commits_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("no repository")
    with pytest.raises(ReleaseError, match="last commit of a git repository"):
        artifacts.export(tmp_path, tmp_path / "tree")


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    artifacts.write_checksums(tmp_path)
    artifacts.write_checksums(tmp_path)  # does not list itself
    checked = ["sha256sum", "--check", "--strict", artifacts.CHECKSUMS]
    done = subprocess.run(checked, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a: OK\nb: OK\n"


# -- the image ------------------------------------------------------------------------------------


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_engine_that_cannot_build_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert artifacts.find_engine() is None
    program(tmp_path / "docker", "exit 1")  # a client without its daemon
    assert artifacts.find_engine() is None
    program(tmp_path / "buildah", "exit 0")
    assert artifacts.find_engine() == "buildah"


@pytest.mark.parametrize(
    ("engine", "stored"),
    [
        ("docker", "save --output={file} sidetier:1.2.3"),
        ("buildah", "push sidetier:1.2.3 docker-archive:{file}:sidetier:1.2.3"),
    ],
)
def test_image_names_its_commit_and_its_base(
    engine: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    program(tmp_path / engine, f'echo "$SOURCE_DATE_EPOCH $*" >> {log}')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    source = Source(tmp_path, "c0ffee", EPOCH, "1.2.3")
    digest = f"sha256:{'0' * 64}"
    artifacts.build_image(source, engine, tmp_path, f"python:3.11@{digest}")
    build, store = log.read_text(encoding="utf-8").splitlines()
    assert build.startswith(f"{EPOCH} build --tag=sidetier:1.2.3 ")
    for argument in (
        "REVISION=c0ffee",
        "CREATED=2023-11-14T22:13:20Z",
        f"BASE_IMAGE=python:3.11@{digest}",
        f"BASE_DIGEST={digest}",
    ):
        assert f" --build-arg={argument} " in build
    assert store == f"{EPOCH} {stored.format(file=tmp_path / 'sidetier-1.2.3-image.tar')}"


def test_failed_program_is_named_with_its_output(tmp_path: Path) -> None:
    docker = program(tmp_path / "docker", "echo no space left; exit 1")
    with pytest.raises(ReleaseError, match=r"docker build .* failed:\nno space left"):
        artifacts.build_image(Source(tmp_path, "c", EPOCH, "1.2.3"), str(docker), tmp_path)


# -- checks ---------------------------------------------------------------------------------------


def release(directory: Path, wheel: list[str], chart: str = "1.2.3") -> Path:
    directory.mkdir()
    with zipfile.ZipFile(directory / "sidetier-1.2.3-py3-none-any.whl", "w") as files:
        for name in wheel:
            files.writestr(name, "")
        files.writestr("sidetier-1.2.3.dist-info/METADATA", "Name: sidetier\nVersion: 1.2.3\n")
    module = "sidetier-1.2.3/src/sidetier/cli/__main__.py"
    package(directory / "sidetier-1.2.3.tar.gz", [module], 1)
    with tarfile.open(directory / "sidetier-1.2.3.tgz", "w:gz") as files:
        content = yaml.safe_dump({"version": chart, "appVersion": "1.2.3"}).encode()
        entry = tarfile.TarInfo("sidetier/Chart.yaml")
        entry.size = len(content)
        files.addfile(entry, io.BytesIO(content))
    return directory


@pytest.mark.parametrize(
    ("wheel", "chart", "problem"),
    [
        (["sidetier/cli/__main__.py", "tests/test_a.py"], "1.2.3", "contains tests/test_a.py"),
        (["sidetier/__init__.py"], "1.2.3", "the links in src/sidetier are missing"),
        (["sidetier/cli/__main__.py"], "1.2.2", "has the version 1.2.2, and the release 1.2.3"),
    ],
)
def test_wrong_content_is_found(wheel: list[str], chart: str, problem: str, tmp_path: Path) -> None:
    sound = release(tmp_path / "sound", ["sidetier/cli/__main__.py"])
    assert list(check.problems(sound, "1.2.3")) == []
    (found,) = check.problems(release(tmp_path / "wrong", wheel, chart), "1.2.3")
    assert problem in found


def test_files_that_differ_or_are_missing_are_found(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "same").write_text("a")
        (directory / "other").write_text(directory.name[:3])
    (second / "more").write_text("")
    assert check.differences(first, second) == ["more", "other"]


# -- licences -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR BSD-3-Clause", True),
        ("Apache Software License; BSD License", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("UNKNOWN", False),
    ],
)
def test_each_part_of_a_licence_must_be_allowed(licence: str, allowed: bool) -> None:  # noqa: FBT001
    assert Licence("a", "1", licence).is_allowed is allowed


def test_packages_at_run_time_are_those_of_the_extras_and_not_of_development() -> None:
    packages = licences.runtime_packages()
    assert {"boto3", "pyarrow", "fastavro", "hdfs-native", "pyspark", "urllib3"} <= packages
    assert not {"pytest", "moto", "ruff", "cyclonedx-bom"} & packages


def test_unknown_licences_are_those_that_are_stated_nowhere(tmp_path: Path) -> None:
    rows = [("hdfs_native", "UNKNOWN"), ("Abc", "UNKNOWN"), ("PyYAML", "MIT License")]
    text = ", ".join(
        f'{{"Name": "{name}", "Version": "1", "License": "{licence}"}}' for name, licence in rows
    )
    tool = program(tmp_path / "pip-licenses", f"echo \"$*\" > {tmp_path}/asked; echo '[{text}]'")
    assert licences.read_licences(tool, ["pyyaml", "abc"]) == [
        Licence("abc", "1", "UNKNOWN"),
        Licence("hdfs-native", "1", "Apache-2.0"),
        Licence("pyyaml", "1", "MIT License"),
    ]
    asked = (tmp_path / "asked").read_text(encoding="utf-8")
    assert asked.startswith(f"--python {sys.executable} ")
    assert asked.endswith("--packages abc pyyaml\n")


# -- workflows ------------------------------------------------------------------------------------


def test_there_is_a_workflow_for_changes_and_one_for_releases() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_only_targets_of_the_makefile(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
        targets = set(job.get("strategy", {}).get("matrix", {}).get("target", ()))
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert commands
        for command in commands:
            program, target, *settings = command.replace("${{ matrix.target }}", "@").split()
            assert program == "make"
            assert all(re.fullmatch(r'[A-Z_]+="\$[A-Z_]+"', setting) for setting in settings)
            targets |= {target} - {"@"}
        for target in targets:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_actions_and_have_few_permissions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        writes = {"contents": "write"} if name == "publish" else None
        assert job.get("permissions") == writes
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
