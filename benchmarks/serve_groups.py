"""Consumer groups of `sidetier serve --groups local`: many members that stay for minutes."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from lib import group_members
from lib.backlog import broker
from lib.endpoint import Endpoint
from lib.group_members import GroupsResult
from lib.options import benchmark_options, work_directory
from lib.programs import ready_program
from lib.results import Report, Target
from lib.stores import real_store
from lib.topics import Shape, store, write

_MIB = 1 << 20
_HOW = """\
{groups} groups of {members} members, each with a connection of its own, stay for {minutes:g} min
with `sidetier serve --groups local` over versitygw. Each member sends a heartbeat every 3 s and
commits every 5 s; the offsets of a group are one object. The members are threads of one process
that speaks the protocol itself. CPU is that of the endpoint's process, user and system, after all
have joined."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the members have seen, and what the endpoint needed meanwhile."""

    members: GroupsResult
    cores: float
    peak_resident_bytes: int


def measure(directory: Path, groups: int, members: int, seconds: float) -> Measured:
    """Run the endpoint and the members."""
    shape = Shape(1 << 10, 16 << 10, _MIB, 4 * _MIB, partitions=members)
    with real_store(directory / "s3") as s3:
        with broker(directory / "kafka") as cluster:
            write(cluster, shape)
            store(cluster, s3, [shape], directory / "sidecar")
        with Endpoint(
            directory / "serve", s3.storage, s3.environment, ("--groups", "local")
        ) as endpoint:
            asked = {
                "servers": endpoint.bootstrap_servers,
                "groups": groups,
                "members": members,
                "topic": shape.topic,
                "seconds": seconds,
            }
            with ready_program(group_members.__file__, asked) as answered:
                cpu = endpoint.cpu_seconds
                result = GroupsResult(**answered())
            cores = (endpoint.cpu_seconds - cpu) / seconds
            return Measured(result, cores, endpoint.peak_resident_bytes)


@click.command()
@benchmark_options
@click.option("--groups", type=int, default=100, show_default=True)
@click.option("--members", type=int, default=3, show_default=True, help="Members of each group.")
@click.option("--minutes", type=float, help="Time for which all stay; 10 by default.")
def main(  # noqa: PLR0913 - one parameter for each option
    *,
    quick: bool,
    runs: int | None,  # noqa: ARG001 - one long run
    record: bool,
    json_path: Path | None,
    groups: int,
    members: int,
    minutes: float | None,
) -> None:
    """Keep many consumer groups stable."""
    minutes = minutes or (0.5 if quick else 10.0)
    with work_directory() as directory:
        measured = measure(directory, groups, members, minutes * 60)
    seen = measured.members
    how = _HOW.format(groups=groups, members=members, minutes=minutes)
    report = Report("serve_groups", "Consumer groups of the endpoint", how)
    report.table(
        ["s to join", "heartbeats", "commits", "slowest answer, s", "cores", "MB resident at most"],
        [
            [
                f"{seen.join_seconds:.1f}",
                seen.heartbeats,
                seen.commits,
                f"{seen.slowest:.2f}",
                f"{measured.cores:.2f}",
                f"{measured.peak_resident_bytes / 1e6:.0f}",
            ]
        ],
    )
    errors = sum((seen.errors or {}).values())
    report.targets += [
        Target("rebalances after all have joined", seen.rebalances, 0),
        Target("errors", errors, 0),
    ]
    report.raw = {"measured": asdict(measured)}
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
