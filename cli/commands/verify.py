"""`sidetier verify`: check that the archive is complete and undamaged."""

from pathlib import Path

import click

from sidetier.cli.arguments import (
    archived_partitions_options,
    checked_positive_size,
    checked_time,
)
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, output_option


@click.command(name="verify")
@archived_partitions_options("check")
@click.option("--deep", is_flag=True, help="Read every byte, and check it.")
@click.option(
    "--local",
    is_flag=True,
    help="Compare with the files of this host's broker, where log_dirs still has the segment.",
)
@click.option(
    "--heads",
    is_flag=True,
    help="Without --deep: read the end offset of each segment, one request each, to prove that the "
    "archive has no gap.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=checked_time,
    help="Read only segments with records of this time or later, such as 2026-11-21, "
    "2026-11-21T08:00:00Z or 2h (before now).",
)
@click.option(
    "--until",
    metavar="TIME",
    callback=checked_time,
    help="Read only segments with records from before this time.",
)
@click.option(
    "--sample",
    metavar="FRACTION",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Share of the segments to read, such as 0.01.  [default: all]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sample.")
@click.option(
    "--rate",
    metavar="SIZE",
    callback=checked_positive_size,
    help="Maximum bytes read per second, such as 200MiB.  [default: no limit]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Segments that are read at the same time, with 8 MiB of memory each. The light check "
    "reads eight partitions for each thread, but one if it has more than 1,000 objects.",
)
@click.option(
    "--resume",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Record the finished segments of --deep in this file, and skip those that it has. "
    "Deleted at the end of a complete run.",
)
@click.option(
    "--metrics-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result for the textfile collector of Prometheus' node exporter.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every finding of severity info.")
@configuration_options
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    deep: bool,
    local: bool,
    heads: bool,
    since: int | None,
    until: int | None,
    sample: float,
    seed: int,
    rate: int | None,
    threads: int,
    resume: Path | None,
    metrics_file: Path | None,
    show_all: bool,
    output: OutputFormat,
) -> None:
    """Check that the archive is complete and undamaged. Sidecars may upload meanwhile.

    Without --deep, the command lists each partition and reads its small objects: it checks that all
    files of each segment exist with the right sizes, and that `offset.wm`, `_metadata` and
    `leader-epoch-checkpoint` agree with them. With --deep it reads every byte, and checks the
    checksum of each object, the CRC of each batch, index entries, offsets, timestamps and leader
    epochs. docs/verify.md explains each finding.

    \b
    Example:
      sidetier verify --config /etc/sidetier/sidetier.yaml
      sidetier verify --topic orders --deep --rate 100MiB --resume /var/tmp/verify.state

    Exit codes: 0 no finding but those of severity info; 1 something could not be read, and there is
    no other finding; 2 a setting or an argument is wrong; 3 findings of severity error or warning;
    130 interrupted, the findings so far are shown.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.archive.verify.run import VerifyRequest  # noqa: PLC0415 -- `--help` must not load it
    from sidetier.cli.verify import run_verify  # noqa: PLC0415 -- as above

    if resume is not None and not deep:
        raise click.UsageError("--resume needs --deep: a light check is short")
    request = VerifyRequest(
        topics,
        frozenset(partitions),
        deep=deep,
        heads=heads,
        since_ms=since,
        until_ms=until,
        sample=sample,
        seed=seed,
        threads=threads,
        rate=rate,
        resume=resume,
    )
    config = invocation(context).load(needs_log_dirs=False).config
    code = run_verify(
        config, request, output, local=local, metrics_file=metrics_file, show_all=show_all
    )
    context.exit(code)
