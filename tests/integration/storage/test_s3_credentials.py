"""Where keys come from: given, environment, profile, and a web identity (IRSA)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidetier.segments.errors import AccessDeniedError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_client import make_client
from sidetier.storage.settings import AttemptDeadline, Credentials, S3Settings
from tests.harness.faulty_s3 import FaultyS3, Seen
from tests.harness.stores import moto_server

AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """A server, in an environment that knows no keys."""
    for name in AWS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with FaultyS3() as server:
        yield server


def _put(server: FaultyS3, settings: S3Settings) -> Seen:
    settings = replace(settings, endpoint_url=server.url, region="us-east-1", path_style=True)
    client = make_client(settings, AttemptDeadline())
    S3Storage(client, "bucket", "", settings).put_object("k", BytesBody(b"x"))
    return server.seen[-1]


def test_given_keys_win(recorder: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "Credential=from-environment/" in _put(recorder, S3Settings()).headers["authorization"]
    seen = _put(recorder, S3Settings(credentials=Credentials("given", "secret", "token-1")))
    assert "Credential=given/" in seen.headers["authorization"]
    assert seen.headers["x-amz-security-token"] == "token-1"


def test_a_profile(recorder: FaultyS3, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[archive]\naws_access_key_id = of-the-profile\naws_secret_access_key = secret\n"
    )
    seen = _put(recorder, S3Settings(profile="archive"))
    assert "Credential=of-the-profile/" in seen.headers["authorization"]


def test_a_web_identity(
    recorder: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("a-token-of-the-cluster")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/sidetier")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    with moto_server() as moto:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", str(moto.endpoint_url))
        seen = _put(recorder, S3Settings())
    assert "Credential=ASIA" in seen.headers["authorization"]
    assert seen.headers["x-amz-security-token"]


def test_no_keys_at_all_is_a_refusal(recorder: FaultyS3) -> None:
    with pytest.raises(AccessDeniedError, match="credentials"):
        _put(recorder, S3Settings())
    assert recorder.seen == []
