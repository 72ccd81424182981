"""Output of the demo at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from devtools.demo.play import Played
from devtools.demo.verify import PartitionProof
from sidetier.cli.arguments import size_text
from sidetier.cli.output import Cell, Table

_COLUMNS = (
    "PARTITION",
    "PRODUCED",
    "READ BACK",
    "SEGMENTS",
    "SIZE",
    "DELETED LOCALLY",
    "LAST SEGMENT",
    "ARCHIVED UP TO",
    "LAG",
)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Result of the demo, partition by partition."""

    played: Played

    def as_json(self) -> object:
        """Return counts, offsets, checksums and problems."""
        return {
            "ok": self.played.sound,
            "seconds": round(self.played.seconds, 1),
            "counted_by_spark": self.played.counted,
            "partitions": [_fields(proof) for proof in self.played.proofs],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and the verdict."""
        proofs = self.played.proofs
        return (Table(_COLUMNS, [_cells(proof) for proof in proofs], footer=self._verdict()),)

    def _verdict(self) -> str:
        proofs = self.played.proofs
        if self.played.sound:
            total = sum(proof.found for proof in proofs)
            sums = " ".join(proof.checksum_stored for proof in proofs)
            return (
                f"\nNothing is missing: {total:,} records stored as they were produced, by offset, "
                f"key and value.\nchecksums {sums}"
            )
        lines = ["", "NOT everything is as it was produced:"]
        total = sum(proof.found for proof in proofs)
        if self.played.counted not in {None, total}:
            lines.append(f"  Spark counts {self.played.counted:,} records of {total:,}")
        for proof in proofs:
            lines += [f"  {proof.topic_partition}: {problem}" for problem in proof.problems]
        return "\n".join(lines)


def _cells(proof: PartitionProof) -> Sequence[Cell]:
    return (
        str(proof.topic_partition),
        proof.produced,
        proof.found,
        len(proof.segments),
        size_text(proof.size),
        proof.deleted_segments,
        proof.watermark,
        proof.next_offset,
        proof.lag,
    )


def _fields(proof: PartitionProof) -> dict[str, Any]:
    return {
        "topic": proof.topic_partition.topic,
        "partition": proof.topic_partition.partition,
        "produced": proof.produced,
        "expected": proof.expected,
        "found": proof.found,
        "segments": len(proof.segments),
        "size_bytes": proof.size,
        "deleted_segments": proof.deleted_segments,
        "watermark": proof.watermark,
        "next_offset": proof.next_offset,
        "log_start": proof.log_start,
        "log_end": proof.log_end,
        "lag": proof.lag,
        "checksum_produced": proof.checksum_produced,
        "checksum_stored": proof.checksum_stored,
        "problems": list(proof.problems),
    }
