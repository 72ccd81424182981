"""Translation of hdfs-native's error texts; integration tests provoke them on a real NameNode."""

import pytest

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.hdfs_client import translation


def rpc(name: str, text: str = "said") -> RuntimeError:
    stack = r"\n\tat org.apache.hadoop.hdfs.server.namenode.FSDirectory.verify(FSDirectory.java:1)"
    return RuntimeError(f'RPCError("{name}", "{text}{stack}")')


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (rpc("org.apache.hadoop.security.AccessControlException"), AccessDeniedError),
        (
            rpc("org.apache.hadoop.security.AccessControlException", "/a (is not a directory)"),
            InvalidRequestError,
        ),
        (
            rpc("org.apache.hadoop.security.token.SecretManager$InvalidToken"),
            AccessDeniedError,
        ),
        (rpc("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"), StoreFullError),
        (
            rpc("org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"),
            InvalidRequestError,
        ),
        (rpc("org.apache.hadoop.hdfs.server.namenode.SafeModeException"), StoreUnavailableError),
        (rpc("org.apache.hadoop.ipc.RetriableException"), StoreThrottledError),
        (rpc("java.io.IOException", "File /a could only be written to 0"), StoreUnavailableError),
        (RuntimeError("NoSASLMechanism"), AccessDeniedError),
        (RuntimeError('UnsupportedFeature("encryption")'), InvalidRequestError),
        (RuntimeError('DataTransferError("closed")'), StoreUnavailableError),
        (FileNotFoundError("/a"), ObjectNotFoundError),
        (FileExistsError("/a"), InvalidRequestError),
        (OSError("Connection refused (os error 111)"), StoreUnavailableError),
        (TimeoutError(), StoreTimeoutError),
    ],
)
def test_each_kind_of_error_is_translated(error: Exception, kind: type[StorageError]) -> None:
    ours = translation("put", "hdfs://n:1/a", error)
    assert type(ours) is kind
    assert str(ours).startswith("put hdfs://n:1/a: ")
    assert "FSDirectory" not in str(ours)
    assert not str(ours).endswith(": ")
