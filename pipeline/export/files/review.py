"""The state of an export, looked at before a run: is it of the log that is there now?

Nothing is written here. What is taken out of the state is written with the next plan; a kill before
leaves what was there, and the next run sees the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.errors import (
    MissingRecordsError,
    UndecidedRecordsError,
    describe_missing,
)
from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.export.errors import BehindError, LogTruncatedError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.ports import Source, ranges_of
from sidetier.pipeline.export.state.changes import planned, rewound, standing, withdrawn
from sidetier.pipeline.export.state.manifest import Manifest, Run
from sidetier.pipeline.export.state.manifest_file import ManifestFile
from sidetier.pipeline.export.tail.logs import require_same_topic
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange

_WAY_ON: Final = (
    "--on-truncation reread replaces the files that hold them by what is there now; or export the "
    "topic into another directory"
)


@dataclass(frozen=True, slots=True)
class Review:
    """Of one topic's state; `reread`: what was thrown away is exported anew."""

    topic: str
    options: FilesOptions
    source: Source
    keeper: ManifestFile
    said: Callable[[str], None]
    reread: bool

    def of(self, manifest: Manifest) -> Manifest:
        """The state without what brokers have thrown away since, and without a plan that cannot be
        carried out any more.

        Raises:
            LogTruncatedError: something was, and nobody has said `reread`.
            MissingRecordsError: what shares files with it is not stored any more.
            OtherTopicError, OtherExportError, ArchiveError, StorageError.
        """
        gone = self.source.truncated(standing(manifest))
        if gone:
            known, found = manifest.topic_id, self.source.topic_id()
            require_same_topic(self.topic, known, found, self.keeper.where)
            if not self.reread:
                raise LogTruncatedError(gone, _WAY_ON)
        run = manifest.pending
        why = None if run is None else self._why_to_give_up(run, gone)
        if why is not None:
            self.said(f"{self.topic}: what an earlier run began with is given up: {why}")
            manifest = withdrawn(manifest, self.keeper.nonce())
        if gone:
            manifest = self._rewound(manifest, gone)
        return manifest

    def _why_to_give_up(self, run: Run, gone: tuple[Truncated, ...]) -> str | None:
        """A plan that was fixed before what it reads has changed; None where it can be tried."""
        if gone or self.source.truncated(planned(run)):
            return "the brokers have thrown away what it read"
        try:
            plan = self.source.plan(ranges_of(self.topic, run.spans), run.options, run.tail)
        except UndecidedRecordsError as error:
            return f"{error}; what comes before is exported"
        except BehindError as error:
            return error.fact
        except MissingRecordsError as error:
            missing = error.missing
        except SidetierError:
            return None  # met again where it is carried out, and told there
        else:
            ends = {one: span.until for one, span in run.spans.items()}
            missing = tuple(one for one in plan.missing if one.range.end == ends[one.tp.partition])
        # It may have been set aside: another plan goes as far as the archive does now.
        return f"it reads what is not stored: {describe_missing(missing[0])}" if missing else None

    def _rewound(self, manifest: Manifest, gone: tuple[Truncated, ...]) -> Manifest:
        forks = {one.tp.partition: one.range.start for one in gone}
        manifest = rewound(manifest, forks, self.keeper.where)
        # What shares files with what goes is to be written again: it must be there to be read.
        shared = {
            one.tp: OffsetRange(Offset(manifest.next_offsets[one.tp.partition]), one.range.start)
            for one in gone
        }
        strict = self.options.model_copy(update={"fail_on_data_loss": True})
        self.source.plan(shared, strict, {})
        self.said(f"to be exported anew: {'; '.join(map(str, gone))}")
        return manifest
