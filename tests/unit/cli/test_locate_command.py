import hashlib
import json
from pathlib import Path

import pytest
import yaml

from sidetier.cli.commands.locate import _DEFAULT_BITS
from sidetier.cli.main import run
from sidetier.config.storage import StorageConfig


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    monkeypatch.delenv("SIDETIER_OUTPUT", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sidetier.yaml"
    values = {
        "cluster": {"name": "prod-a"},
        "log_dirs": ["/data"],
        "storage": {
            "url": "s3://bucket/archive/",
            "prefix_entropy_bits": 8,
            "overrides": [{"topics": "audit.*", "url": "file:///mnt/audit"}],
        },
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def bits_of(text: str, count: int) -> str:
    return f"{int(hashlib.md5(text.encode()).hexdigest(), 16):0128b}"[:count]  # noqa: S324


def test_location_is_computed_without_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["locate", "orders", "3", "--cluster", "prod-a", "--prefix", "s3://bucket/archive"]
    assert run(line) == 0
    bits = bits_of("prod-a-orders-3", 5)
    assert capsys.readouterr().out == f"s3://bucket/archive/{bits}/prod-a/orders-3/\n"
    assert run([*line, "--bits", "0"]) == 0
    assert capsys.readouterr().out == "s3://bucket/archive/prod-a/orders-3/\n"


def test_location_is_computed_from_the_configuration(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["locate", "orders", "3", "--config", str(file)]) == 0
    bits = bits_of("prod-a-orders-3", 8)
    assert capsys.readouterr().out == f"s3://bucket/archive/{bits}/prod-a/orders-3/\n"


def test_location_follows_the_storage_overrides(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--config", str(file), "locate", "audit-log", "0", "--output", "json"]) == 0
    bits = bits_of("prod-a-audit-log-0", 8)
    assert json.loads(capsys.readouterr().out) == {
        "topic": "audit-log",
        "partition": 0,
        "uri": f"file:///mnt/audit/{bits}/prod-a/audit-log-0/",
        "storage_url": "file:///mnt/audit",
        "prefix": f"{bits}/prod-a/audit-log-0/",
        "cluster": "prod-a",
        "bits": 8,
    }


def test_option_takes_precedence_over_the_configuration(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["locate", "orders", "3", "--config", str(file), "--cluster", "b"]) == 0
    assert (
        capsys.readouterr().out == f"s3://bucket/archive/{bits_of('b-orders-3', 8)}/b/orders-3/\n"
    )


def test_missing_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["locate", "orders", "3", "--cluster", "prod-a"]) == 2
    assert "locate needs --cluster and --prefix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["a/b", "0", "--cluster", "c", "--prefix", "s3://b"], "'a/b' is no topic"),
        (["t", "-1", "--cluster", "c", "--prefix", "s3://b"], "No such option"),
        (["t", "x", "--cluster", "c", "--prefix", "s3://b"], "'x' is not a valid integer"),
        (["t", "0", "--cluster", "c", "--prefix", "/mnt"], "'/mnt' must begin with one of s3://"),
        (["t", "0", "--cluster", "c/d", "--prefix", "s3://b"], "cluster.name 'c/d'"),
        (["t", "0", "--cluster", "c", "--prefix", "s3://b", "--bits", "129"], "--bits"),
    ],
)
def test_invalid_arguments_are_refused(
    line: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["locate", *line]) == 2
    caught = capsys.readouterr()
    assert message in caught.err
    assert caught.out == ""


def test_default_entropy_bits_equal_those_of_the_configuration() -> None:
    assert StorageConfig.model_fields["prefix_entropy_bits"].default == _DEFAULT_BITS
