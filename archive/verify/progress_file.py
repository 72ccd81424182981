"""The segments that a run of `sidetier verify` has finished, for a run that continues it.

The first line of the file describes the run. Each finished segment adds a line of JSON with its
version (the etags of its files) and its findings, in one write. A kill leaves at most the last line
incomplete; that line is ignored, and its segment is read again.
"""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.verify.findings import Finding, FindingKind
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_VERSION: Final = 1


def version_of(segment: SegmentFiles) -> str:
    """Return a text that changes when any file of the segment is replaced, added or deleted."""
    return " ".join(f"{kind.value}={row.etag}" for kind, row in sorted(segment.files.items()))


class FinishedSegment:
    """A finished segment: its version, its end (None if unknown), and its findings."""

    __slots__ = ("findings", "next_offset", "version")

    def __init__(
        self, version: str, next_offset: Offset | None, findings: tuple[Finding, ...]
    ) -> None:
        self.version = version
        self.next_offset = next_offset
        self.findings = findings


class ProgressFile:
    """Records finished segments. Thread-safe.

    Args:
        path: The file. It is created if it does not exist.
        run: What decides the result of a segment, such as the cluster and the checks. A file of
            another run is refused.

    Raises:
        ConfigurationError: The file cannot be written, or belongs to another run.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._finished: dict[str, FinishedSegment] = {}
        header = {"version": _VERSION, **run}
        try:
            self._load(header)
            # Written anew, without the incomplete last line of a kill, and moved into place.
            temporary = path.with_name(f"{path.name}.tmp")
            with temporary.open("w", encoding="utf-8") as file:
                file.write(json.dumps(header) + "\n")
                for key, segment in self._finished.items():
                    file.write(_line(key, segment))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--resume {path}: {error.strerror or error}") from None

    def finished(self, key: str, version: str) -> FinishedSegment | None:
        """Return the result of a segment that was checked in this version; None otherwise.

        Args:
            key: Key of its `.log`.
            version: Result of `version_of`.
        """
        segment = self._finished.get(key)
        return segment if segment is not None and segment.version == version else None

    def add(self, key: str, segment: FinishedSegment) -> None:
        """Record a finished segment. A kill before the write leaves it to be read again."""
        with self._lock:
            self._file.write(_line(key, segment))
            self._file.flush()

    def remove(self) -> None:
        """Delete the file, after a run that has checked everything."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _load(self, header: Mapping[str, Any]) -> None:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        except UnicodeDecodeError:
            lines = ["not a file of sidetier verify"]
        if not lines:
            return
        if _parsed(lines[0]) != header:
            raise ConfigurationError(
                f"--resume {self._path}: the file is of a run with other options, or is no file of "
                "sidetier verify; name another file, or delete it to begin anew"
            )
        for line in lines[1:]:
            fields = _parsed(line)
            if fields is not None:
                self._finished[fields["key"]] = _segment(fields)


def _parsed(line: str) -> Any:  # noqa: ANN401 -- JSON
    try:
        return parse_json(line)
    except ValueError:
        return None  # the line that a kill has cut


def _line(key: str, segment: FinishedSegment) -> str:
    findings = [
        [f.kind.value, *f.topic_partition, f.key, f.offsets, f.detail] for f in segment.findings
    ]
    fields = {
        "key": key,
        "etags": segment.version,
        "next_offset": segment.next_offset,
        "findings": findings,
    }
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _segment(fields: Mapping[str, Any]) -> FinishedSegment:
    findings = tuple(
        Finding(
            FindingKind(kind),
            TopicPartition(topic, partition),
            key,
            None if offsets is None else OffsetRange(*offsets),
            detail,
        )
        for kind, topic, partition, key, offsets, detail in fields["findings"]
    )
    return FinishedSegment(fields["etags"], fields["next_offset"], findings)
