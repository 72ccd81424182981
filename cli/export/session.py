"""One call of an export command, from the configuration to the exit code."""

import sys
import threading
from collections import Counter as Totals
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

from pydantic import ValidationError

from sidetier.cli import exits
from sidetier.cli.export.kafka_options import BOOTSTRAP
from sidetier.cli.export.view import DryRun
from sidetier.cli.metrics_file import write_metrics_file
from sidetier.cli.output import OutputFormat, Shown, emit
from sidetier.cli.progress import drawn
from sidetier.cli.signals import stopping
from sidetier.config.model import BrokerConfig
from sidetier.config.problems import reason_of
from sidetier.config.secrets import is_secret_property
from sidetier.config.sources import read_config_text, yaml_layer
from sidetier.config.storage import StorageConfig
from sidetier.config.types import SecretRef
from sidetier.pipeline.export.exporting import OnRound
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.report import ExportOutcome, ExportPlan
from sidetier.pipeline.export.request import FilesRequest, TableRequest
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry import export_catalogue
from sidetier.uploader.clock import SYSTEM_CLOCK

Report = TypeVar("Report", bound=ExportOutcome)
Report_co = TypeVar("Report_co", bound=ExportOutcome, covariant=True)


class Export(Protocol[Report_co]):
    """An export to files or to a table."""

    def dry_run(self) -> ExportPlan:
        """Return what a run would do."""
        ...

    def run(self, stop: threading.Event, on_round: OnRound) -> Report_co:
        """Export; with `follow` until `stop`."""
        ...


def finish(
    export: Export[Report],
    request: FilesRequest | TableRequest,
    view: Callable[[Report], Shown],
    output: OutputFormat,
    metrics_file: Path | None,
) -> int:
    """Run an export or show its plan; return the exit code. With `follow`, a signal stops it.

    Raises:
        SidetierError: The export failed; what was committed remains.
    """
    if request.dry_run:
        plan = export.dry_run()
        emit(DryRun(plan), output)
        return exit_code(plan, fail_on_data_loss=False)

    def on_round(held_back: Iterable[HeldBack], failed: int) -> None:
        if metrics_file is not None:
            write_metrics(metrics_file, held_back, failed)

    with stopping(wanted=request.follow is not None) as stop:
        report = export.run(stop, on_round)
    emit(view(report), output)
    return exit_code(report, fail_on_data_loss=request.fail_on_data_loss)


def exit_code(outcome: ExportOutcome, *, fail_on_data_loss: bool) -> int:
    """Return the exit code of an export."""
    errors = outcome.failed.values()
    if errors:
        is_usage = all(isinstance(error, ConfigurationError) for error in errors)
        return exits.MISCONFIGURED if is_usage and len(errors) == outcome.topics else exits.FAILED
    if outcome.waits and fail_on_data_loss:
        return exits.FAILED
    return exits.FINDINGS if outcome.has_findings or outcome.waits else exits.OK


@dataclass(slots=True)
class Counter:
    """Adds up the progress of an export's tasks, which call it on their threads.

    Attributes:
        show: Called with the offsets that are done, their total so far, and the records that were
            read. The total grows with each run that begins: with `--chunk`, and for each topic.
    """

    show: Callable[[int, int, int], None] = field(default=lambda _done, _total, _records: None)
    done: int = 0
    total: int = 0
    records: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, offsets: int) -> None:
        """Add offsets of tasks that begin."""
        with self.guard:
            self.total += offsets
            self.show(self.done, self.total, self.records)

    def advance(self, offsets: int, records: int) -> None:
        """Add offsets that are done, and their records."""
        with self.guard:
            self.done += offsets
            self.records += records
            self.show(self.done, self.total, self.records)


@contextmanager
def shown(*, wanted: bool, stream: TextIO | None = None) -> Iterator[Counter]:
    """Show a bar on standard error; nothing if it is not a terminal."""
    target = stream if stream is not None else sys.stderr
    if not wanted or not target.isatty():
        yield Counter()
        return
    columns = (
        "{task.fields[records]:,} records",
        "BarColumn",
        "{task.completed:,.0f} of {task.total:,.0f} offsets",
        "TaskProgressColumn",
        "TimeElapsedColumn",
        "elapsed,",
        "TimeRemainingColumn",
        "left",
    )
    with drawn(target, columns, transient=True, total=0, records=0) as draw:
        yield Counter(
            lambda done, total, records: draw(completed=done, total=total, records=records)
        )


def write_metrics(path: Path, held_back: Iterable[HeldBack], failed_topics: int) -> None:
    """Write the metrics of the run.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    entries = list(held_back)
    causes = Totals((entry.tp.topic, entry.cause.value) for entry in entries)
    write_metrics_file(
        path,
        {
            export_catalogue.HELD_BACK: causes.items(),
            export_catalogue.OPEN_TRANSACTION: [
                (entry.tp, entry.age_s) for entry in entries if entry.age_s is not None
            ],
            export_catalogue.FAILED_TOPICS: [((), failed_topics)],
            export_catalogue.LAST_ROUND: [((), SYSTEM_CLOCK.wall())],
        },
    )


def target_of(archive: StorageConfig, into: str | None, file: Path | None) -> StorageConfig:
    """Return the store of the output; without a file it has the archive's credentials and options.

    Raises:
        ConfigurationError: No URL is given, or a setting in the file is wrong.
    """
    if file is None:
        checked = _checked({"url": into}, "--into")
        return archive.model_copy(update={"url": checked.url, "overrides": ()})
    values: dict[str, object] = dict(yaml_layer(read_config_text(file), str(file)).values)
    if into is not None:
        values["url"] = into
    return _checked(values, str(file))


def _checked(values: dict[str, object], where: str) -> StorageConfig:
    if values.get("url") is None:
        raise ConfigurationError(f"{where}: the url of the output is missing: --into URL")
    try:
        return StorageConfig.model_validate(values)
    except ValidationError as error:
        lines = [
            f"{where}: {'.'.join(map(str, problem['loc']))}: {reason_of(problem)}"
            for problem in error.errors()
        ]
        raise ConfigurationError("\n".join(lines)) from None


def reached_at(
    broker: BrokerConfig, bootstrap: str | None, given: Mapping[str, str]
) -> BrokerConfig:
    """Return the cluster to ask, at another address if one is given."""
    servers = given.get(BOOTSTRAP, bootstrap)
    return broker if servers is None else broker.model_copy(update={"bootstrap_servers": servers})


def read_by(broker: BrokerConfig, bootstrap: str | None, given: Mapping[str, str]) -> BrokerConfig:
    """Return the cluster to ask. Secrets are references, since executors may receive the result.

    Raises:
        ConfigurationError: A property contains a secret instead of a reference.
    """
    cluster = reached_at(broker, bootstrap, given)
    client = {
        name: SecretRef.of_text(f"--kafka-option {name}", value)
        if is_secret_property(name)
        else value
        for name, value in given.items()
        if name != BOOTSTRAP
    }
    return cluster.model_copy(update={"client": {**cluster.client, **client}})
