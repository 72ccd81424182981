import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidetier.cli.main import run
from sidetier.config.model import Config


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    monkeypatch.delenv("SIDETIER_OUTPUT", raising=False)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    text = "version=1\nnode.id=7\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n"
    (path / "meta.properties").write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path, log_dir: Path) -> Path:
    path = tmp_path / "sidetier.yaml"
    values = {
        "cluster": {"name": "a"},
        "log_dirs": [str(log_dir)],
        "storage": {
            "url": "s3://bucket",
            "s3": {"access_key_id": {"env": "KEY_ID"}, "secret_access_key": {"env": "KEY"}},
        },
    }
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def result(capsys: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401 -- JSON
    return json.loads(capsys.readouterr().out)


def test_check_reports_the_cluster_and_broker_of_the_log_dirs(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "check", "--config", str(file), "--output", "json"]) == 0
    assert result(capsys) == {
        "ok": True,
        "problems": [],
        "warnings": [],
        "cluster_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "broker_id": 7,
    }


def test_check_prints_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", str(file), "config", "check"]) == 0
    assert "broker 7 of AAAAAAAAAAAAAAAAAAAAAA" in capsys.readouterr().out


def test_check_finds_invalid_settings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", str(file), "--set", "http.port=x", "config", "check"]) == 2
    assert "http.port (flag --set): must be a whole number, not 'x'" in capsys.readouterr().out


def test_check_finds_problems_of_the_machine(
    file: Path, log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (log_dir / "meta.properties").unlink()
    assert run(["config", "check", "--config", str(file), "--output", "json"]) == 2
    found = result(capsys)
    assert found["ok"] is False
    [line] = found["problems"]
    assert line.startswith(f"log_dirs[0] ({file}:4): {log_dir}/meta.properties is missing")


def test_check_is_stricter_than_a_start(
    file: Path, log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start continues with the readable log dirs, as the broker does."""
    log_dirs = f'log_dirs=["{log_dir}","{log_dir.parent}/none"]'
    assert run(["--set", log_dirs, "config", "check", "--config", str(file)]) == 2
    assert "none does not exist" in capsys.readouterr().out


def test_check_shows_the_topics_that_each_pattern_selects(
    file: Path, log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("orders-0", "orders-1", "clicks-0", "audit-0-delete"):
        (log_dir / name).mkdir()
    options = ["--set", 'topics.include=["ord.*","ordrs"]', "--set", 'topics.exclude=["clicks"]']
    arguments = [*options, "config", "check", "--config", str(file), "--topics"]
    assert run([*arguments, "--output", "json"]) == 0
    assert result(capsys)["patterns"] == [
        {"setting": "topics.include", "pattern": "ord.*", "topics": ["orders"]},
        {"setting": "topics.include", "pattern": "ordrs", "topics": []},
        {"setting": "topics.exclude", "pattern": "clicks", "topics": ["clicks"]},
    ]
    assert run(arguments) == 0
    assert "ordrs    no topic here" in capsys.readouterr().out
    assert run([*arguments, "--settings-only"]) == 2


def test_check_finds_a_partition_that_is_not_archived(
    file: Path, log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (log_dir / "orders-0").symlink_to(log_dir / "none")
    assert run(["config", "check", "--config", str(file), "--output", "json"]) == 2
    [line] = result(capsys)["problems"]
    assert f"{log_dir}/orders-0 is a symbolic link to" in line


def test_missing_file_is_named_instead_of_each_required_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidetier.cli.invocation.DEFAULT_CONFIG", tmp_path / "sidetier.yaml")
    assert run(["config", "show"]) == 2
    why = f"no configuration file: {tmp_path}/sidetier.yaml does not exist; name a file by --config"
    assert capsys.readouterr().err == f"sidetier: {why} or SIDETIER_CONFIG\n"
    assert run(["--set", "cluster.name=a", "config", "show"]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith(f"sidetier: {why}")
    assert shown[1] == "sidetier: log_dirs: is required"


def test_check_can_skip_the_machine(
    file: Path, log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (log_dir / "meta.properties").unlink()
    assert run(["config", "check", "--config", str(file), "--settings-only"]) == 0
    assert "ok" in capsys.readouterr().out


def test_show_prints_every_setting_with_its_source(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIDETIER_CONFIG", str(file))
    monkeypatch.setenv("SIDETIER_UPLOADER__THREADS", "3")
    assert run(["config", "show", "--set", "http.port=0", "--output", "json"]) == 0
    rows = {row["setting"]: (row["value"], row["source"]) for row in result(capsys)}
    assert rows["uploader.threads"] == (3, "env SIDETIER_UPLOADER__THREADS")
    assert rows["http.port"] == (0, "flag --set")
    assert rows["storage.url"] == ("s3://bucket", f"{file}:6")
    assert rows["storage.s3.part_size"] == ("256MiB", "default")
    assert rows["storage.s3.access_key_id"][0] == {"env": "KEY_ID"}


def test_show_can_be_limited_to_changed_settings(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "show", "--config", str(file), "--changed"]) == 0
    settings = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert settings == [
        "SETTING",
        "cluster.name",
        "log_dirs",
        "storage.url",
        "storage.s3.access_key_id",
        "storage.s3.secret_access_key",
    ]


def test_settings_inside_overrides_have_a_source_too(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIDETIER_STORAGE__OVERRIDES", "[{topics: x, url: 's3://o'}]")
    assert run(["config", "show", "--config", str(file), "--output", "json"]) == 0
    rows = {row["setting"]: row["source"] for row in result(capsys)}
    assert rows["storage.overrides[0].url"] == "env SIDETIER_STORAGE__OVERRIDES"
    assert rows["storage.overrides[0].s3"] == "default"


def test_show_prints_no_secret(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    for command in (["show"], ["show", "--output", "json"], ["check"]):
        assert run(["--config", str(file), "config", *command]) == 0
    caught = capsys.readouterr()
    assert "hunter2" not in caught.out + caught.err


def test_values_that_could_be_secrets_are_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "cluster.name=a",
        "log_dirs=[/d]",
        "storage.url=hdfs://namenode/kafka",
        "storage.hdfs.properties.sas_token=hunter2",
        "storage.hdfs.properties.endpoint=https://user:hunter2@host/?sig=hunter2",
        "broker.client.sasl.username=hunter2",
        "broker.client.sasl.oauthbearer.token.endpoint.url=https://user:hunter2@host/token",
    ]
    flags = [word for setting in given for word in ("--set", setting)]
    for form in ("table", "json"):
        assert run([*flags, "config", "show", "--output", form]) == 0
        shown = capsys.readouterr().out
        assert "hunter2" not in shown
        assert "https://[redacted]@host/?sig=[redacted]" in shown


def test_flags_replace_the_file_of_the_environment_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIDETIER_CONFIG", "/nowhere.yaml")
    assert run(["config", "show", "--config", str(file)]) == 0
    assert run(["config", "show"]) == 2


def test_schema_equals_that_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema"]) == 0
    schema = result(capsys)
    assert set(schema["properties"]) == set(Config.model_fields)
    assert schema["required"] == ["cluster", "log_dirs", "storage"]
    s3 = schema["$defs"]["S3Config"]
    assert s3["additionalProperties"] is False
    assert s3["properties"]["part_size"]["default"] == "256MiB"
    assert schema["$defs"]["PinsConfig"]["properties"]["min_free_disk"]["default"] == "5%"


@pytest.mark.parametrize("command", ["check", "show", "schema"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", command, "--help"]) == 0
    assert "Example:\n    sidetier " in capsys.readouterr().out
