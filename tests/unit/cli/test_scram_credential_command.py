"""`sidetier scram-credential`: the entry, and where the password comes from."""

import io
from pathlib import Path

import pytest

from sidetier.cli.main import run
from sidetier.endpoint.users import read_users


def derived(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, *options: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    code = run(["scram-credential", *options])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("options", "mechanisms"),
    [
        ((), {"SCRAM-SHA-512"}),
        (("--mechanism", "SCRAM-SHA-256", "--iterations", "5000"), {"SCRAM-SHA-256"}),
        (
            ("--mechanism", "SCRAM-SHA-512", "--mechanism", "SCRAM-SHA-256"),
            {"SCRAM-SHA-256", "SCRAM-SHA-512"},
        ),
    ],
)
def test_the_entry_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: tuple[str, ...],
    mechanisms: set[str],
) -> None:
    path = tmp_path / "users.yaml"
    text = "users:\n"
    for name, password in (("alice", "secret one"), ("Bob: 7", "other")):
        code, out, _ = derived(monkeypatch, capsys, f"{password}\r\nmore\n", name, *options)
        assert code == 0
        assert password not in out
        text += out
    path.write_text(text)
    users = read_users(path)
    assert len(users) == 2
    assert users.has_password("alice", "secret one")
    assert users.has_password("Bob: 7", "other")
    alice = users.get("alice")
    assert alice is not None
    assert set(alice.credentials) == mechanisms
    assert not alice.access.can_read("orders")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", (), "password is empty"),
        ("\n", (), "password is empty"),
        ("secret\n", ("--iterations", "100"), "4096"),
        ("secret\n", ("--mechanism", "PLAIN"), "SCRAM-SHA-256"),
    ],
)
def test_wrong_arguments(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    code, out, err = derived(monkeypatch, capsys, text, "alice", *options)
    assert code == 2
    assert out == ""
    assert message in err
    assert "secret" not in err
