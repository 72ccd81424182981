"""Leadership by configuration."""

from pathlib import Path

import pytest

from sidetier.leadership.port import LeadershipView
from sidetier.leadership.settings import StaticSettings
from sidetier.leadership.static import StaticLeadership
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition

ORDERS = TopicPartition("orders", 0)


def first_view(settings: StaticSettings) -> LeadershipView:
    seen: list[LeadershipView] = []
    StaticLeadership(settings).start(seen.append)
    (view,) = seen
    return view


def test_named_partitions_are_led_without_an_epoch() -> None:
    view = first_view(StaticSettings(partitions=(ORDERS,)))
    assert (view.leads, view.known) == ({ORDERS: UNKNOWN_EPOCH}, True)


def test_empty_list_leads_nothing() -> None:
    view = first_view(StaticSettings(partitions=()))
    assert (view.leads, view.known) == ({}, True)


def test_all_live_partitions_of_all_log_dirs_are_found(tmp_path: Path) -> None:
    for name in (
        "a/orders-0",
        "a/orders-1.0123456789abcdef0123456789abcdef-delete",
        "a/__cluster_metadata-0",
        "a/lost+found",
        "b/orders-2",
        "b/payments-10",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "orders-7").touch()
    view = first_view(StaticSettings(log_dirs=(tmp_path / "a", tmp_path / "b")))
    assert sorted(map(str, view.leads)) == ["orders-0", "orders-2", "payments-10"]


def test_missing_log_dir_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"log dir .*/gone cannot be read: No such file"):
        first_view(StaticSettings(log_dirs=(tmp_path / "gone",)))


def test_one_missing_log_dir_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a" / "orders-0").mkdir(parents=True)
    view = first_view(StaticSettings(log_dirs=(tmp_path / "gone", tmp_path / "a")))
    assert list(map(str, view.leads)) == ["orders-0"]
    assert f"log dir {tmp_path / 'gone'} cannot be read" in capsys.readouterr().out


def test_settings_without_partitions_and_log_dirs_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs partitions, or log dirs"):
        first_view(StaticSettings())
