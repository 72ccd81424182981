"""Sources of credentials: settings, environment, profile, and a web identity (IRSA)."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sidetier.segments.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_chain import ChainCredentials, bucket_address
from sidetier.storage.s3_client import make_client
from sidetier.storage.settings import AttemptDeadline, Credentials, S3Settings
from tests.harness.faulty_s3 import FaultyS3, Seen
from tests.harness.s3 import S3Bucket
from tests.harness.stores import moto_server, s3_settings

AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """A server, in an environment without credentials."""
    for name in AWS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with FaultyS3() as server:
        yield server


def _put(server: FaultyS3, settings: S3Settings, size: int = 1) -> Seen:
    settings = replace(settings, endpoint_url=server.url, region="us-east-1", path_style=True)
    S3Storage("bucket", "", settings).put_object("k", BytesBody(b"x" * size))
    return server.seen[-1]


def test_configured_keys_take_precedence(
    recorder: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "Credential=from-environment/" in _put(recorder, S3Settings()).headers["authorization"]
    seen = _put(recorder, S3Settings(credentials=Credentials("given", "secret", "token-1")))
    assert "Credential=given/" in seen.headers["authorization"]
    assert seen.headers["x-amz-security-token"] == "token-1"


def test_keys_of_a_profile_are_used(recorder: FaultyS3, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[archive]\naws_access_key_id = of-the-profile\naws_secret_access_key = secret\n"
    )
    seen = _put(recorder, S3Settings(profile="archive"))
    assert "Credential=of-the-profile/" in seen.headers["authorization"]


def test_keys_of_a_web_identity_are_used(
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


def test_keys_that_expire_soon_are_renewed(recorder: FaultyS3, tmp_path: Path) -> None:
    """Obstore asks every 5 minutes; the keys must be valid for longer than that."""
    now = 1_800_000_000.0
    soon = datetime.fromtimestamp(time.time() + 300, UTC).isoformat()  # noqa: TID251 -- botocore's
    script = tmp_path / "keys"
    said = json.dumps(
        {
            "Version": 1,
            "AccessKeyId": "key-$(wc -l <calls)",
            "SecretAccessKey": "secret",
            "SessionToken": "token",
            "Expiration": soon,
        }
    ).replace('"', r"\"")
    script.write_text(f'#!/bin/sh\ncd {tmp_path}\necho called >>calls\necho "{said}"\n')
    script.chmod(0o755)
    (tmp_path / "config").write_text(f"[profile archive]\ncredential_process = {script}\n")
    chain = ChainCredentials(S3Settings(profile="archive"), clock=lambda: now)
    first, second = chain(), chain()
    assert first["access_key_id"] != second["access_key_id"]
    assert first["expires_at"] == datetime.fromtimestamp(now + 600, UTC)
    assert recorder.seen == []


@pytest.mark.parametrize("size", [1, 100_000], ids=["obstore", "urllib3"])
def test_endpoint_setting_takes_precedence(
    recorder: FaultyS3, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    settings = S3Settings(credentials=Credentials("given", "secret"))
    assert len(_put(recorder, settings, size).body) == size


@pytest.mark.parametrize("size", [1, 100_000], ids=["obstore", "urllib3"])
def test_endpoint_of_the_environment_is_used_without_a_setting(
    recorder: FaultyS3, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", recorder.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    settings = S3Settings(credentials=Credentials("given", "secret"))
    S3Storage("bucket", "", settings).put_object("k", BytesBody(b"x" * size))
    (seen,) = recorder.seen
    assert seen.path == "/bucket/k"
    assert "/eu-central-1/s3/" in seen.headers["authorization"]


@pytest.mark.parametrize(
    ("bucket", "settings", "endpoint"),
    [
        ("logs", S3Settings(region="eu-west-1"), "https://logs.s3.eu-west-1.amazonaws.com"),
        ("logs", S3Settings(region="cn-north-1"), "https://logs.s3.cn-north-1.amazonaws.com.cn"),
        ("my.logs", S3Settings(region="eu-west-1"), "https://s3.eu-west-1.amazonaws.com"),
        ("logs", S3Settings(endpoint_url="https://s3.corp/"), "https://logs.s3.corp"),
        ("logs", S3Settings(endpoint_url="https://s3.corp", path_style=True), "https://s3.corp"),
        ("logs", S3Settings(endpoint_url="http://10.0.0.1:9000"), "http://10.0.0.1:9000"),
    ],
)
@pytest.mark.usefixtures("recorder")
def test_bucket_address_follows_the_settings(
    bucket: str, settings: S3Settings, endpoint: str
) -> None:
    address = bucket_address(bucket, settings)
    assert address.endpoint == endpoint
    assert address.in_host == endpoint.startswith(f"https://{bucket}.")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"AWS_DEFAULT_REGION": "us-gov-west-1"},
        {"AWS_DEFAULT_REGION": "eu-west-3", "AWS_USE_FIPS_ENDPOINT": "false"},
        {"AWS_DEFAULT_REGION": "us-east-2", "AWS_USE_FIPS_ENDPOINT": "true"},
        {"AWS_DEFAULT_REGION": "eu-west-3", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
        {"AWS_DEFAULT_REGION": "new-region-9"},
        {"AWS_ENDPOINT_URL": "https://all.corp"},
        {"AWS_ENDPOINT_URL": "https://all.corp", "AWS_ENDPOINT_URL_S3": "https://s3.corp"},
        {"AWS_ENDPOINT_URL": "https://all.corp", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
        {"AWS_PROFILE": "a"},
        {"AWS_PROFILE": "b"},
    ],
)
@pytest.mark.usefixtures("recorder")
def test_region_and_endpoint_are_those_of_boto3(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(
        "[profile a]\nregion = ap-south-2\nendpoint_url = https://a.corp\n"
        "[profile b]\nregion = us-east-1\nservices = own\n"
        "[services own]\ns3 =\n  endpoint_url = https://b.corp\n"
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = S3Settings(path_style=True)
    meta = make_client(settings, AttemptDeadline()).meta
    found = bucket_address("logs", settings)
    # Without a region, boto3 takes the other name of the same endpoint.
    endpoint = meta.endpoint_url.replace("s3.amazonaws", "s3.us-east-1.amazonaws")
    assert (found.region, found.endpoint) == (meta.region_name or "us-east-1", endpoint)


def test_missing_keys_are_access_denied(recorder: FaultyS3) -> None:
    with pytest.raises(AccessDeniedError, match="credentials"):
        _put(recorder, S3Settings())
    assert recorder.seen == []


OPERATIONS: dict[str, Callable[[S3Storage], object]] = {
    "get": lambda store: store.get_object("k"),
    "small range": lambda store: store.get_object_input_stream("k", 0, 10).read(),
    "large range": lambda store: store.get_object_input_stream("k", 0, 10_000_000).read(),
    "put": lambda store: store.put_object("k", BytesBody(b"x")),
}
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"credentials": Credentials("AKIAWRONG", "x")}, "correct storage.s3.access_key_id"),
    "region": ({"region": "eu-west-1"}, "set storage.s3.region to us-east-1"),
    "bucket": ({}, "create the bucket, or correct storage.url"),
}


@pytest.mark.integration
@pytest.mark.parametrize("call", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize(("changes", "advised"), MISTAKES.values(), ids=MISTAKES)
def test_real_server_refuses_and_the_error_names_the_setting(
    s3_bucket: S3Bucket,
    changes: dict[str, Any],
    advised: str,
    call: Callable[[S3Storage], object],
) -> None:
    name = s3_bucket.name if changes else "no-such-bucket"
    settings = replace(s3_settings(s3_bucket), **changes)
    with pytest.raises(StorageError) as caught:
        call(S3Storage(name, "", settings))
    text = str(caught.value)
    assert advised in text
    assert "<" not in text
    # The server answers 404 to an unknown key, too: the archive must not look empty.
    assert not isinstance(caught.value, ObjectNotFoundError)


@pytest.mark.integration
def test_real_server_refuses_a_wrong_secret(s3_bucket: S3Bucket) -> None:
    key = s3_bucket.server.access_key
    settings = replace(s3_settings(s3_bucket), credentials=Credentials(key, "wrong"))
    store = S3Storage(s3_bucket.name, "", settings)
    with pytest.raises(AccessDeniedError, match=f"the secret of the access key {key} is another"):
        store.put_object("k", BytesBody(b"x"))
    with pytest.raises(AccessDeniedError, match="has no reason; usually the credentials are wrong"):
        store.head_object("k")
