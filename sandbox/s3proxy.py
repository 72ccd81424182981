"""S3Proxy: an S3 server that needs nothing but Java, for machines where versitygw cannot be built.

Of two writers under one If-Match both may win (see `S3Server.fences`): no store for a fence.
"""

import subprocess
from pathlib import Path

from sidetier.sandbox.errors import SandboxError
from sidetier.sandbox.jars import S3PROXY, class_path, jars_of
from sidetier.sandbox.java import find_java
from sidetier.sandbox.kafka_config import write_properties

_MAIN_CLASS = "org.gaul.s3proxy.Main"
_JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def command(
    directory: Path, endpoint: str, keys: tuple[str, str], certificate: tuple[Path, Path] | None
) -> list[str]:
    """Write the server's configuration, and return its command line.

    `keys` are the access and the secret key, `certificate` a pair of PEM files.
    """
    buckets = directory / "buckets"
    buckets.mkdir(parents=True, exist_ok=True)
    settings = {
        "s3proxy.endpoint" if certificate is None else "s3proxy.secure-endpoint": endpoint,
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": keys[0],
        "s3proxy.credential": keys[1],
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(buckets),
    }
    if certificate is not None:
        settings["s3proxy.keystore-path"] = str(_key_store(directory, keys[1], certificate))
        settings["s3proxy.keystore-password"] = keys[1]
    config = directory / "s3proxy.properties"
    write_properties(config, settings)
    jars = class_path(jars_of(S3PROXY))
    return [
        *(str(find_java().program), *_JVM_FLAGS, "-cp", jars),
        *(_MAIN_CLASS, "--properties", str(config)),
    ]


def _key_store(directory: Path, password: str, certificate: tuple[Path, Path]) -> Path:
    """The certificate and its key in the form that Java reads."""
    store = directory / "certificate.p12"
    line = ["openssl", "pkcs12", "-export", "-in", str(certificate[0])]
    line += ["-inkey", str(certificate[1]), "-out", str(store), "-passout", f"pass:{password}"]
    try:
        subprocess.run(line, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxError(f"openssl could not convert the certificate: {error}") from error
    return store
