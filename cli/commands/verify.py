"""`sidetier verify`: check that the archive is complete and undamaged."""

from pathlib import Path

import click

from sidetier.cli import kernel
from sidetier.cli.arguments import (
    FILE,
    POSITIVE_SIZE,
    TIME,
    ArchivedPartitions,
)
from sidetier.cli.options import CommandOptions, group, option, options


@options
class VerifyOptions(CommandOptions):
    """Options of `sidetier verify`."""

    archived: ArchivedPartitions = group("check")
    deep: bool = option("--deep", help="Read every byte, and check it.")
    local: bool = option(
        "--local",
        help="Compare with the files of this host's broker, where log_dirs still has the segment.",
    )
    heads: bool = option(
        "--heads",
        help="Without --deep: read the end offset of each segment, one request each, to prove that "
        "the archive has no gap.",
    )
    since: int | None = option(
        "--since",
        type=TIME,
        help="Read only segments with records of this time or later, such as 2026-11-21, "
        "2026-11-21T08:00:00Z or 2h (before now).",
    )
    until: int | None = option(
        "--until",
        type=TIME,
        help="Read only segments with records from before this time.",
    )
    sample: float = option(
        "--sample",
        metavar="FRACTION",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        show_default=False,
        help="Share of the segments to read, such as 0.01.  [default: all]",
    )
    seed: int = option("--seed", default=0, help="Seed of the sample.")
    rate: int | None = option(
        "--rate",
        type=POSITIVE_SIZE,
        help="Maximum bytes read per second, such as 200MiB.  [default: no limit]",
    )
    threads: int = option(
        "--threads",
        type=click.IntRange(1, 64),
        default=4,
        help="Segments that are read at the same time, with 8 MiB of memory each. The light check "
        "reads eight partitions for each thread, but one if it has more than 1,000 objects.",
    )
    resume: Path | None = option(
        "--resume",
        type=FILE,
        help="Record the finished segments of --deep in this file, and skip those that it has. "
        "Deleted at the end of a complete run.",
    )
    metrics_file: Path | None = option(
        "--metrics-file",
        type=FILE,
        help="Write the result for the textfile collector of Prometheus' node exporter.",
    )
    show_all: bool = option("--all", help="Show every finding of severity info.")


@kernel.command("verify")
def command(options: VerifyOptions) -> kernel.Outcome:
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

    if options.resume is not None and not options.deep:
        raise click.UsageError("--resume needs --deep: a light check is short")
    request = VerifyRequest(
        options.archived.topics,
        frozenset(options.archived.partitions),
        deep=options.deep,
        heads=options.heads,
        since_ms=options.since,
        until_ms=options.until,
        sample=options.sample,
        seed=options.seed,
        threads=options.threads,
        rate=options.rate,
        resume=options.resume,
    )
    return run_verify(
        options.call.load(needs_log_dirs=False).config,
        request,
        local=options.local,
        metrics_file=options.metrics_file,
        show_all=options.show_all,
    )
