from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sidetier.config.model import Config
from sidetier.config.problems import Problem, dotted
from sidetier.config.startup import Kind, LocalMachine, LogDirs, Machine, check_machine


def meta(node: int = 1, cluster: str = "AAAAAAAAAAAAAAAAAAAAAA", version: int = 1) -> str:
    key = "node.id" if version else "broker.id"
    return f"#\nversion={version}\n{key}={node}\ncluster.id={cluster}\n"


class FakeMachine:
    """Directories with the text of their meta.properties; None means that the file is missing."""

    def __init__(self, dirs: Mapping[str, str | None]) -> None:
        self.dirs = {Path(name): text for name, text in dirs.items()}
        self.files: set[Path] = set()
        self.locked: set[Path] = set()
        self.links: dict[Path, Path] = {}
        self.devices: dict[Path, int] = {}
        self.error: Exception | None = None

    def kind(self, path: Path) -> Kind:
        if path in self.dirs:
            return "directory"
        known = path in self.files or self.dirs.get(path.parent) is not None
        return "file" if known else "missing"

    def readable(self, path: Path) -> bool:
        return path not in self.locked

    def read_text(self, path: Path) -> str:
        if self.error is not None:
            raise self.error
        return self.dirs[path.parent] or ""

    def real(self, path: Path) -> Path:
        return self.links.get(path, path)

    def device(self, path: Path) -> int | None:
        return self.devices.get(path, 1 if path in self.dirs else None)


def checked(machine: Machine, *log_dirs: str, **changed: object) -> LogDirs:
    values = {
        "cluster": {"name": "a"},
        "log_dirs": list(log_dirs),
        "storage": {"url": "s3://b"},
    }
    return check_machine(Config.model_validate(values | changed), machine)


def told(found: LogDirs) -> list[str]:
    return lines(found.problems)


def lines(problems: Iterable[Problem]) -> list[str]:
    return [f"{dotted(problem.path)}: {problem.message}" for problem in problems]


def test_log_dirs_of_one_broker_pass() -> None:
    found = checked(FakeMachine({"/a": meta(7), "/b": meta(7)}), "/a", "/b")
    assert found.problems == ()
    assert found.identity is not None
    assert (found.identity.broker_id, found.identity.mode) == (7, "kraft")


@pytest.mark.parametrize(
    ("dirs", "words"),
    [
        ({"/a": meta(), "/b": meta(cluster="B" * 22)}, "/b belongs to cluster BBBBBBBBBBBBBBBBB"),
        ({"/a": meta(1), "/b": meta(2)}, "/b belongs to broker 2, /a to broker 1"),
    ],
)
def test_problem_names_the_wrong_log_dir(dirs: dict[str, str | None], words: str) -> None:
    [line] = told(checked(FakeMachine(dirs), "/a", "/b"))
    assert line.startswith("log_dirs[1]: ")
    assert words in line


@pytest.mark.parametrize(
    ("dirs", "words"),
    [
        ({"/a": meta()}, "/b does not exist"),
        ({"/a": meta(), "/b": None}, "/b/meta.properties is missing"),
        ({"/a": meta(), "/b": "version=1\n"}, "/b/meta.properties: node.id"),
    ],
)
@pytest.mark.parametrize("order", [("/a", "/b"), ("/b", "/a")], ids=" ".join)
def test_unreadable_log_dir_is_a_warning_while_another_is_readable(
    dirs: dict[str, str | None], words: str, order: tuple[str, str]
) -> None:
    """The broker continues with its other log dirs."""
    found = checked(FakeMachine(dirs), *order)
    assert found.identity is not None
    assert found.problems == ()
    [line] = lines(found.warnings)
    assert line.startswith(f"log_dirs[{order.index('/b')}]: ")
    assert words in line


def test_file_is_no_log_dir() -> None:
    machine = FakeMachine({})
    machine.files.add(Path("/a"))
    assert told(checked(machine, "/a")) == ["log_dirs[0]: /a is not a directory"]


def test_log_dir_without_read_permission_is_a_problem() -> None:
    machine = FakeMachine({"/a": meta()})
    machine.locked.add(Path("/a"))
    [line] = told(checked(machine, "/a"))
    assert "cannot be read" in line


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "cannot be read: Permission denied"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "is not UTF-8"),
    ],
)
def test_unreadable_meta_properties_are_a_problem(error: Exception, words: str) -> None:
    machine = FakeMachine({"/a": meta()})
    machine.error = error
    [line] = told(checked(machine, "/a"))
    assert words in line


def test_all_problems_are_found_at_once() -> None:
    machine = FakeMachine({"/a": meta(), "/c": None, "/d": meta(9)})
    found = checked(machine, "/a", "/b", "/c", "/d")
    assert (len(found.problems), len(found.warnings)) == (1, 2)
    nothing = checked(machine, "/b", "/c")
    assert (nothing.identity, len(nothing.problems), nothing.warnings) == (None, 2, ())


def test_two_names_of_one_directory_are_a_problem() -> None:
    machine = FakeMachine({"/a": meta(), "/b": meta()})
    machine.links[Path("/b")] = Path("/a")
    [line] = told(checked(machine, "/a", "/b"))
    assert "same directory as /a" in line


def test_store_inside_a_log_dir_through_a_link_is_a_problem() -> None:
    machine = FakeMachine({"/a": meta()})
    machine.links[Path("/archive")] = Path("/a/archive")
    [line] = told(checked(machine, "/a", storage={"url": "file:///archive"}))
    assert line.startswith("storage.url: /archive is a link to /a/archive")


@pytest.mark.parametrize(
    ("version", "changed", "setting"),
    [
        (1, {"broker": {"id": 4}}, "broker.id"),
        (1, {"leadership": {"source": "zookeeper"}}, "leadership.source"),
        (0, {"leadership": {"source": "kraft"}}, "leadership.source"),
        (0, {}, "leadership.zookeeper.connect"),
    ],
)
def test_broker_identity_in_the_configuration_must_match(
    version: int, changed: dict[str, Any], setting: str
) -> None:
    found = checked(FakeMachine({"/a": meta(3, version=version)}), "/a", **changed)
    assert [dotted(problem.path) for problem in found.problems] == [setting]


def test_local_machine_reports_the_existing_files(tmp_path: Path) -> None:
    machine = LocalMachine()
    (tmp_path / "meta.properties").write_text(meta(5), encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path)
    assert machine.kind(tmp_path) == "directory"
    assert machine.kind(tmp_path / "meta.properties") == "file"
    assert machine.kind(tmp_path / "none") == "missing"
    assert machine.readable(tmp_path)
    assert machine.real(tmp_path / "link") == machine.real(tmp_path)
    found = checked(machine, str(tmp_path))
    assert found.problems == ()
    assert found.identity is not None
    assert found.identity.broker_id == 5


def with_spool(machine: FakeMachine, *spools: str) -> list[str]:
    pins = {"pins": {"spool": list(spools)}}
    return told(checked(machine, "/a", "/b", uploader=pins))


def test_one_spool_per_mount_passes() -> None:
    machine = FakeMachine({"/a": meta(), "/b": meta(), "/s": None, "/t": None})
    machine.devices = {Path("/b"): 2, Path("/t"): 2}
    assert with_spool(machine, "/s", "/t") == []


def test_missing_or_misplaced_spool_is_named() -> None:
    machine = FakeMachine({"/a": meta(), "/b": meta(), "/s": None})
    assert with_spool(machine, "/s", "/no") == [
        "uploader.pins.spool[1]: /no is not a directory: create it, writable for the sidecar"
    ]
    machine.devices = {Path("/b"): 2}
    assert with_spool(machine, "/s") == [
        "uploader.pins.spool: none is on the file system of the log dir /b"
    ]
    machine.devices, machine.links = {}, {Path("/s"): Path("/a/s")}
    (problem,) = with_spool(machine, "/s")
    assert problem.startswith("uploader.pins.spool[0]: /s is inside a log dir")


def test_failed_disk_disables_the_spool_with_its_log_dir() -> None:
    machine = FakeMachine({"/a": meta(), "/s": None})
    assert with_spool(machine, "/s", "/on-the-failed-disk") == []


def test_file_system_of_a_path_is_identified(tmp_path: Path) -> None:
    machine = LocalMachine()
    assert machine.device(tmp_path) == tmp_path.stat().st_dev
    assert machine.device(tmp_path / "nowhere") is None
