"""Check an export's state before a run: does it belong to the log that exists now?

This module does not write. The next plan's write stores the changed state. A kill before that
leaves the old state, and the next run makes the same changes.
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
    """The check of one topic's state.

    Attributes:
        reread: whether discarded records are replaced by those that have their offsets now.
    """

    topic: str
    options: FilesOptions
    source: Source
    keeper: ManifestFile
    said: Callable[[str], None]
    reread: bool

    def of(self, manifest: Manifest) -> Manifest:
        """Return the state without discarded records, and without a plan that cannot be carried
        out.

        Raises:
            LogTruncatedError: exported records were discarded, and `reread` is False.
            MissingRecordsError: records that share files with discarded ones are not stored any
                more.
            OtherTopicError, OtherExportError, ArchiveError, StorageError.
        """
        gone = self.source.truncated(standing(manifest))
        if gone:
            known, present = manifest.topic_id, self.source.topic_id()
            require_same_topic(self.topic, known, present, self.keeper.where)
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
        """Return why a plan cannot be carried out after a change of the archive; None to try it."""
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
            return None  # the run itself meets the error again, and reports it
        else:
            ends = {item: span.until for item, span in run.spans.items()}
            missing = tuple(
                item for item in plan.missing if item.range.end == ends[item.tp.partition]
            )
        # The archive's end may have been quarantined: a new plan ends where the archive ends now.
        return f"it reads what is not stored: {describe_missing(missing[0])}" if missing else None

    def _rewound(self, manifest: Manifest, gone: tuple[Truncated, ...]) -> Manifest:
        forks = {discarded.tp.partition: discarded.range.start for discarded in gone}
        manifest = rewound(manifest, forks, self.keeper.where)
        # Records below a divergence that share its file are written again: they must be stored.
        shared = {
            discarded.tp: OffsetRange(
                Offset(manifest.next_offsets[discarded.tp.partition]), discarded.range.start
            )
            for discarded in gone
        }
        strict = self.options.model_copy(update={"fail_on_data_loss": True})
        self.source.plan(shared, strict, {})
        self.said(f"to be exported anew: {'; '.join(map(str, gone))}")
        return manifest
