from pathlib import Path

import pytest

import sidetier
from sidetier.segments.json_text import parse_json

DEEP = b"[" * 100_000 + b"]" * 100_000
PACKAGES = Path(sidetier.__file__).parent
ALLOWED = {
    "segments/json_text.py",
    "pipeline/planning/offsets_json.py",  # finds keys that a user gives twice
}


@pytest.mark.parametrize("data", [b'{"a": [1, 2.5, null]}', '{"a": [1, 2.5, null]}'])
def test_documents_are_parsed(data: bytes | str) -> None:
    assert parse_json(data) == {"a": [1, 2.5, None]}
    assert parse_json('"é"'.encode("utf-16")) == "é"


@pytest.mark.parametrize(
    "data",
    [DEEP, b'{"a":' * 100_000, b"", b"{", b"\xff", b"1e999", b"[-1e999]", b"NaN", b"Infinity"],
    ids=lambda data: data[:8],
)
def test_everything_else_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(data)


def test_no_package_parses_foreign_json_otherwise() -> None:
    """`json.loads` raises RecursionError for deep values, which callers forget."""
    found = {
        path.relative_to(PACKAGES).as_posix()
        for package in PACKAGES.iterdir()
        if package.is_dir()
        for path in package.resolve().rglob("*.py")
        if "json.loads(" in path.read_text() or "json.load(" in path.read_text()
        for path in [PACKAGES / package.name / path.relative_to(package.resolve())]
    }
    assert found <= ALLOWED
    assert (PACKAGES / "segments" / "json_text.py").is_file()
