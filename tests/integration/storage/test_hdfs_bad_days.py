"""HDFS failures: servers that are stopped, killed or silent, refusals, and forked processes."""

import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from devtools.sandbox.hdfs import HdfsCluster
from sidetier.segments.errors import (
    ConfigurationError,
    InvalidRequestError,
    StoreFullError,
    StoreTimeoutError,
    StoreUnavailableError,
    TransientStorageError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_plain, open_storage
from sidetier.storage.hdfs import HdfsStorage
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions
from sidetier.storage.settings import (
    MIB,
    AttemptDeadline,
    HdfsSettings,
    RetryPolicy,
    StorageEndpoint,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

BIG = bytes(range(256)) * 4096 * 24
"""24 MiB: more than a client and its kernel can buffer."""


@pytest.fixture
def url(hdfs_cluster: HdfsCluster) -> str:
    return f"{hdfs_cluster.url}/{uuid.uuid4().hex}"


@pytest.fixture
def own(own_hdfs_cluster: HdfsCluster) -> Iterator[HdfsStorage]:
    """A store on this test's own cluster, with short deadlines."""
    store = HdfsStorage(f"{own_hdfs_cluster.url}/archive", deadline=AttemptDeadline(base=5.0))
    yield store
    store.close()


def test_stopped_namenode_is_unavailable_and_loses_nothing(
    own_hdfs_cluster: HdfsCluster, own: HdfsStorage
) -> None:
    etag = own.put_object("k", BytesBody(b"before"), PutOptions(metadata={"v": "1"}))
    own_hdfs_cluster.namenode.stop()
    began = monotonic()
    for call in (
        lambda: own.get_object("k"),
        lambda: own.put_object("k", BytesBody(b"x"), PutOptions(condition=IfMatch(etag))),
        lambda: list(own.list_objects("")),
        lambda: own.delete_object("k"),
    ):
        with pytest.raises(TransientStorageError):
            call()
    assert monotonic() - began < 15, "the client has tried again by itself"
    own_hdfs_cluster.start_namenode()
    assert own.get_object("k").head.metadata == {"v": "1"}
    own.put_object("k", BytesBody(b"after"), PutOptions(condition=IfMatch(etag)))
    assert own.get_object("k").data == b"after"


def test_silent_namenode_is_given_up_at_the_deadline(
    own_hdfs_cluster: HdfsCluster, own: HdfsStorage
) -> None:
    own.put_object("k", BytesBody(b"x"))
    own_hdfs_cluster.namenode.pause()
    try:
        began = monotonic()
        with pytest.raises(StoreTimeoutError, match="k"):
            own.head_object("k")
        assert 4 < monotonic() - began < 30
    finally:
        own_hdfs_cluster.namenode.resume()
    assert own.head_object("k").size == 1


def test_datanode_killed_during_a_read_is_a_transient_error(
    own_hdfs_cluster: HdfsCluster, own: HdfsStorage
) -> None:
    own.put_object("big", BytesBody(BIG))
    (datanode,) = own_hdfs_cluster.datanodes
    with own.get_object_input_stream("big") as stream:
        read = stream.read(MIB)
        datanode.kill()
        with pytest.raises(TransientStorageError):
            stream.read()
    assert read == BIG[:MIB]
    own_hdfs_cluster.start_datanode(0)
    with own.get_object_input_stream("big", len(read)) as stream:
        assert read + stream.read() == BIG


def test_put_without_a_datanode_leaves_nothing(
    own_hdfs_cluster: HdfsCluster, own: HdfsStorage
) -> None:
    (datanode,) = own_hdfs_cluster.datanodes
    datanode.kill()
    with pytest.raises(TransientStorageError):
        own.put_object("k", BytesBody(b"x"))
    assert list(own.list_objects("")) == []
    own_hdfs_cluster.start_datanode(0)
    own.put_object("k", BytesBody(b"x"), PutOptions(condition=IfAbsent()))
    assert own.get_object("k").data == b"x"


def test_requests_are_retried_until_the_namenode_is_back(
    own_hdfs_cluster: HdfsCluster,
) -> None:
    endpoint = StorageEndpoint(
        f"{own_hdfs_cluster.url}/archive",
        retry=RetryPolicy(attempts=100, max_delay=0.5, max_elapsed=120.0),
    )
    store = open_storage(endpoint)
    store.put_object("k", BytesBody(b"1"))
    own_hdfs_cluster.namenode.kill()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(store.put_object, "k", BytesBody(b"2"))
        own_hdfs_cluster.start_namenode()
        etag = future.result(timeout=120)
    assert store.head_object("k").etag == etag
    store.close()


def test_user_without_permission_is_refused(url: str) -> None:
    HdfsStorage(url).put_object("k", BytesBody(b"x"))
    script = (
        "import sys\n"
        "from sidetier.segments.errors import AccessDeniedError\n"
        "from sidetier.storage.bodies import BytesBody\n"
        "from sidetier.storage.hdfs import HdfsStorage\n"
        "store = HdfsStorage(sys.argv[1])\n"
        "assert store.get_object('k').data == b'x'\n"
        "for call in (\n"
        "    lambda: store.put_object('other', BytesBody(b'y')),\n"
        "    lambda: store.delete_object('k'),\n"
        "):\n"
        "    try:\n"
        "        call()\n"
        "    except AccessDeniedError as error:\n"
        "        assert 'Permission denied: user=mallory' in str(error), error\n"
        "        assert 'FSPermissionChecker' not in str(error), error\n"
        "    else:\n"
        "        raise AssertionError('it was allowed')\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, url],
        env={**os.environ, "HADOOP_USER_NAME": "mallory"},
        check=True,
        timeout=120,
    )
    assert [row.key for row in HdfsStorage(url).list_objects("")] == ["k"]


def test_exhausted_quota_is_store_full(hdfs_cluster: HdfsCluster, url: str) -> None:
    store = HdfsStorage(url)
    store.put_object("k", BytesBody(b"x"))
    directory = url.removeprefix(hdfs_cluster.url)
    hdfs_cluster.admin("-setSpaceQuota", "1m", directory)
    with pytest.raises(StoreFullError, match="quota"):
        store.put_object("full", BytesBody(b"x" * MIB))
    hdfs_cluster.admin("-clrSpaceQuota", directory)
    hdfs_cluster.admin("-setQuota", "1", directory)
    with pytest.raises(StoreFullError, match="quota"):
        store.put_object("many/more", BytesBody(b""))
    assert [row.key for row in store.list_objects("")] == ["k"]


@pytest.mark.parametrize("key", ["a:b", "x/" + "y" * 256, "_sidetier-store/x", ".snapshot/x"])
def test_names_that_hdfs_refuses_are_refused(url: str, key: str) -> None:
    with pytest.raises(InvalidRequestError):
        HdfsStorage(url).put_object(key, BytesBody(b"x"))


def test_file_in_place_of_a_directory_is_refused(url: str) -> None:
    store = HdfsStorage(url)
    store.put_object("a", BytesBody(b"x"))
    store.put_object("d/e", BytesBody(b"x"))
    for key in ("a/b", "d"):
        with pytest.raises(InvalidRequestError, match=key):
            store.put_object(key, BytesBody(b"x"))


def test_configuration_directory_names_the_namenode(hdfs_cluster: HdfsCluster) -> None:
    directory = uuid.uuid4().hex
    endpoint = StorageEndpoint(
        f"hdfs:///{directory}", hdfs=HdfsSettings(config_dir=hdfs_cluster.config_dir)
    )
    open_plain(endpoint).put_object("k", BytesBody(b"x"))
    assert HdfsStorage(f"{hdfs_cluster.url}/{directory}").get_object("k").data == b"x"
    missing = HdfsSettings(config_dir=Path("/no/such/conf"))
    with pytest.raises(ConfigurationError, match="/no/such/conf"):
        HdfsStorage("hdfs:///x", missing)


def test_name_service_is_found_by_properties(hdfs_cluster: HdfsCluster) -> None:
    directory = uuid.uuid4().hex
    properties = {
        "dfs.ha.namenodes.prod": "a,b",
        "dfs.namenode.rpc-address.prod.a": "127.0.0.1:1",
        "dfs.namenode.rpc-address.prod.b": hdfs_cluster.url.removeprefix("hdfs://"),
    }
    settings = HdfsSettings(properties=tuple(properties.items()))
    store = HdfsStorage(f"hdfs://prod/{directory}", settings)
    store.put_object("k", BytesBody(b"x"))
    assert HdfsStorage(f"{hdfs_cluster.url}/{directory}").get_object("k").data == b"x"


def test_replaced_version_is_read_to_its_end_or_fails(url: str) -> None:
    store = HdfsStorage(url)
    store.put_object("k", BytesBody(BIG))
    with store.get_object_input_stream("k") as stream:
        read = stream.read(MIB)
        store.put_object("k", BytesBody(b"new" * len(BIG)))
        try:
            read += stream.read()
        except StoreUnavailableError:
            return
    assert read == BIG


def test_forked_process_is_refused_and_does_not_hang(url: str) -> None:
    script = (
        "import os, sys\n"
        "from sidetier.segments.errors import InvalidRequestError\n"
        "from sidetier.storage.hdfs import HdfsStorage\n"
        "store = HdfsStorage(sys.argv[1])\n"
        "assert list(store.list_objects('')) == []\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        store.head_object('k')\n"
        "    except InvalidRequestError as error:\n"
        "        os._exit(0 if 'forked' in str(error) else 1)\n"
        "    os._exit(2)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script, url], check=True, timeout=120)


def test_store_cannot_be_pickled(url: str) -> None:
    with pytest.raises(TypeError, match="settings"):
        pickle.dumps(HdfsStorage(url))


def test_file_of_another_program_is_an_object(hdfs_cluster: HdfsCluster, url: str) -> None:
    from hdfs_native import Client  # noqa: PLC0415  the other program

    with Client(hdfs_cluster.url).create(f"{url.removeprefix(hdfs_cluster.url)}/k") as file:
        file.write(b"other")
    store = HdfsStorage(url)
    stored = store.get_object("k")
    assert (stored.data, stored.head.metadata, stored.head.checksum) == (b"other", {}, None)
    store.put_object("k", BytesBody(b"ours"), PutOptions(condition=IfMatch(stored.head.etag)))
    assert store.get_object("k").data == b"ours"


def test_missing_server_is_store_unavailable() -> None:
    with pytest.raises(StoreUnavailableError, match="Connection refused"):
        HdfsStorage("hdfs://127.0.0.1:1/x").head_object("k")
