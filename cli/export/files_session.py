"""One call of `sidetier export files`, from the configuration to the exit code."""

from sidetier.cli.export.kafka_options import kafka_properties
from sidetier.cli.export.options import FilesCommandOptions
from sidetier.cli.export.request import request_of
from sidetier.cli.export.session import finish, read_by, shown, target_of
from sidetier.cli.export.view import FilesResult
from sidetier.cli.output import say
from sidetier.config.model import Config
from sidetier.pipeline.export.files_export import open_files_export


def export_files(config: Config, options: FilesCommandOptions) -> int:
    """Export, and return the exit code. Raises SidetierError."""
    request = request_of(options)
    broker = read_by(config.broker, options.tail.bootstrap, kafka_properties(options.tail))
    reached = config.model_copy(update={"broker": broker})
    target = target_of(config.storage, options.into, options.into_config)
    with (
        shown(wanted=not request.dry_run) as counter,
        open_files_export(reached, request, target, on_note=say, watcher=counter) as export,
    ):
        return finish(export, request, FilesResult, options.output, options.metrics_file)
