import threading
from pathlib import Path

import pytest

from sidetier.brokers.cache import cache_root, fetch_once, is_complete


def write_jar(folder: Path) -> None:
    (folder / "a.jar").write_text("jar")


def test_cache_root_is_the_first_of_the_environment_variables() -> None:
    both = {"SIDETIER_CACHE": "/own", "XDG_CACHE_HOME": "/shared"}
    assert cache_root(both) == Path("/own")
    assert cache_root({"XDG_CACHE_HOME": "/shared"}) == Path("/shared/sidetier")
    assert cache_root({}) == Path.home() / ".cache" / "sidetier"


def test_folder_is_filled_once(tmp_path: Path) -> None:
    folder = fetch_once("jars/x", write_jar, root=tmp_path)
    assert (folder / "a.jar").read_text() == "jar"
    (folder / "a.jar").write_text("kept")
    assert fetch_once("jars/x", write_jar, root=tmp_path) == folder
    assert (folder / "a.jar").read_text() == "kept"


def test_failed_fetch_leaves_nothing_and_is_retried(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write_jar(folder)
        raise OSError("the network is away")

    with pytest.raises(OSError, match="network"):
        fetch_once("x", fail, root=tmp_path)
    assert not is_complete(tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]
    assert is_complete(fetch_once("x", write_jar, root=tmp_path))


def test_leftovers_of_a_crash_are_replaced(tmp_path: Path) -> None:
    unmarked, partial = tmp_path / "x", tmp_path / "x.partial.abc"
    for folder in (unmarked, partial):
        folder.mkdir()
        (folder / "half.jar").touch()
    folder = fetch_once("x", write_jar, root=tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [".complete", "a.jar"]
    assert not partial.exists()


def test_two_concurrent_fetches_download_once(tmp_path: Path) -> None:
    fills: list[Path] = []
    inside, go_on = threading.Event(), threading.Event()

    def fill(folder: Path) -> None:
        fills.append(folder)
        inside.set()
        assert go_on.wait(10)
        write_jar(folder)

    racers = [
        threading.Thread(target=fetch_once, args=("x", fill), kwargs={"root": tmp_path})
        for _ in range(2)
    ]
    for racer in racers:
        racer.start()
    assert inside.wait(10)
    go_on.set()
    for racer in racers:
        racer.join(10)
    assert len(fills) == 1
    assert (tmp_path / "x" / "a.jar").exists()
