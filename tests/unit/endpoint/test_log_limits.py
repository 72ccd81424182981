"""Log events that clients cause at any rate."""

from sidetier.endpoint.log_limits import FewPerSubject


def test_ten_events_in_ten_seconds_for_each_subject() -> None:
    now = [0.0]
    limit = FewPerSubject(lambda: now[0])
    assert [limit.count("a") for _ in range(15)] == [1] * 10 + [0] * 5
    assert limit.count("b") == 1
    now[0] = 9.9
    assert limit.count("a") == 0
    now[0] = 10.0
    assert limit.count("a") == 7  # those that were left out, and this one
    assert limit.count("a") == 1


def test_many_subjects_share_one_allowance_and_take_no_memory() -> None:
    now = [0.0]
    limit = FewPerSubject(lambda: now[0])
    logged = sum(limit.count(number) > 0 for number in range(5000))
    assert logged == 1010
    assert len(limit._subjects) <= 1001
    now[0] = 20.0
    assert limit.count("later") == 1
    assert len(limit._subjects) == 1
