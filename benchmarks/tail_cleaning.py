"""Tail packs: how many stay, and what cleaning copies, in a simulated week of one broker."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from lib.options import benchmark_options
from lib.results import Report, Target
from numpy.typing import NDArray

from sidetier.archive.tail.merge import PackRef
from sidetier.segments.offsets import BrokerId
from sidetier.uploader.tail.cleaning import PackUse, plan_cleaning
from sidetier.uploader.tail.copying import MAX_ROW_BYTES

_PARTITIONS = 2000
_CYCLE = 5.0
_CLEANING = 600.0
_DAY = 86400.0
_STEADY = 1.5 * _DAY
"""From then on, archived segments and new records are in balance."""
_SLICE_BYTES, _SLICE_AGE = 64 << 20, _DAY
_RATES = (0.2e6, 1e6, 3e6, 10e6, 30e6)
_HOW = """\
Arithmetic, without a store: the sidecar's `plan_cleaning` decides every 10 minutes about the packs
of one broker, which stores a pack every {cycle:g} s. {partitions:,} partitions, whose rates follow
Zipf's law with exponent 1; each archives its records once it has {slice:.0f} MiB of them, or after
{age:g} hours (early archiving). {days:g} days; the figures are of the time after the first
{steady:g}. **Needed** bytes are not archived yet. The bytes of segments do not count as
written."""

_Times = NDArray[np.float64]


@dataclass
class Week:
    """The result of a simulation."""

    rate: float
    live_packs: int = 0
    stored_bytes: float = 0.0
    needed_bytes: float = 0.0
    written: float = 0.0
    """Bytes that were written, per byte of a new record."""
    copied_peak: float = 0.0
    """Most bytes that one cleaning has copied."""


@dataclass
class _Pack:
    size: float
    modified: float
    times: _Times
    """The cycles whose records it has: begin in seconds."""


def simulate(rate: float, days: float, seed: int = 1) -> Week:
    """Simulate the packs of a broker with `rate` bytes per second."""
    weights = 1 / np.arange(1, _PARTITIONS + 1)
    rates = weights / weights.sum() * rate
    period = np.minimum(_SLICE_BYTES / rates, _SLICE_AGE)
    archived = -np.random.default_rng(seed).random(_PARTITIONS) * period
    packs: dict[int, _Pack] = {}
    week, number, copied, now = Week(rate), 0, 0.0, 0.0
    while now < days * _DAY:
        for begin in np.arange(now, now + _CLEANING, _CYCLE):
            number += 1
            packs[number] = _Pack(rate * _CYCLE, begin + _CYCLE, np.array([begin]))
        now += _CLEANING
        archived += np.floor((now - archived) / period) * period
        uses = _uses(packs, archived, rates)
        week.needed_bytes = sum(use.live_bytes for use in uses)
        plan = plan_cleaning(uses, int(now * 1000))
        for pack in plan.drop:
            del packs[pack.number]
        in_turn = 0
        for batch in plan.copy:
            times = np.sort(np.concatenate([packs.pop(use.pack.number).times for use in batch]))
            size = sum(use.live_bytes for use in batch)
            number += 1
            packs[number] = _Pack(size, now, times[times >= archived.min() - _CYCLE])
            in_turn += size
        copied += in_turn
        if now > _STEADY:
            week.live_packs = max(week.live_packs, len(packs))
            week.stored_bytes = max(week.stored_bytes, sum(each.size for each in packs.values()))
            week.copied_peak = max(week.copied_peak, in_turn)
    week.written = 1 + copied / (rate * days * _DAY)
    return week


def _uses(packs: dict[int, _Pack], archived: _Times, rates: _Times) -> list[PackUse]:
    order = np.argsort(archived)
    ends = archived[order]
    needed_rates = np.concatenate([[0.0], np.cumsum(rates[order])])
    times = np.concatenate([pack.times for pack in packs.values()])
    lengths = np.array([len(pack.times) for pack in packs.values()])
    starts = np.cumsum(lengths) - lengths
    rows = np.searchsorted(ends, times, side="right")
    # Rows of cycles that follow each other are joined.
    is_new = np.concatenate([[True], np.diff(times) != _CYCLE])
    is_new[starts] = True
    needed = np.add.reduceat(needed_rates[rows] * _CYCLE, starts)
    live_rows = np.add.reduceat(rows * is_new, starts)
    return [
        PackUse(
            PackRef(BrokerId(1), number, "", "", int(pack.size), int(pack.modified * 1000)),
            int(pack.size),
            int(size),
            max(int(count), int(size) // MAX_ROW_BYTES) if count else 0,
            b"",
        )
        for (number, pack), size, count in zip(packs.items(), needed, live_rows, strict=True)
    ]


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Simulate the cleaning of tail packs for a week."""
    days = 2.0 if quick else float(runs or 7)
    weeks = []
    for rate in _RATES[3:4] if quick else _RATES:
        weeks.append(simulate(rate, days))
        print(weeks[-1], file=sys.stderr)
    ten = next(week for week in weeks if week.rate == 10e6)
    report = Report(
        "tail_cleaning",
        "How many tail packs stay",
        _HOW.format(
            cycle=_CYCLE,
            partitions=_PARTITIONS,
            slice=_SLICE_BYTES / (1 << 20),
            age=_SLICE_AGE / 3600,
            days=days,
            steady=_STEADY / _DAY,
        ),
        [
            Target("most live packs at any rate", max(week.live_packs for week in weeks), 1000),
            Target("bytes written per byte at 10 MB/s, packs alone", ten.written, 1.5),
        ],
        {"weeks": [asdict(week) for week in weeks]},
    )
    report.table(
        ["MB/s", "live packs", "stored, GB", "needed, GB", "written per byte", "peak copied, MB"],
        (
            (
                f"{week.rate / 1e6:g}",
                f"{week.live_packs:,}",
                f"{week.stored_bytes / 1e9:.1f}",
                f"{week.needed_bytes / 1e9:.1f}",
                f"{week.written:.2f}",
                f"{week.copied_peak / 1e6:,.0f}",
            )
            for week in weeks
        ),
    )
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
