"""Dead letters: records that do not fit, written as JSON lines with the reason."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.files.formats.form import Form
from sidetier.pipeline.export.files.formats.json_texts import text_of
from sidetier.pipeline.export.files.formats.lines import StreamForm
from sidetier.pipeline.export.files.partitioning import Encoded, default_name
from sidetier.pipeline.export.files.rows import Rows
from sidetier.pipeline.export.files.values.decoder import Misfit
from sidetier.segments.offsets import TopicPartition

DEAD_LETTER_SCHEMA = pa.schema([pa.field("letter", pa.string())])


def dead_letter_form() -> Form:
    """Return the format of dead-letter files: one JSON object per line."""
    return StreamForm("json", _render, "none")


def dead_letters(tp: TopicPartition, batch: pa.RecordBatch, misfits: Sequence[Misfit]) -> Rows:
    """Return the rows for records that do not fit. Keys, values and header values are base64."""
    chosen = batch.take(pa.array([misfit.row for misfit in misfits], type=pa.int64()))
    reasons = [misfit.reason for misfit in misfits]
    letters = [
        text_of(_letter(tp, row, reason))
        for row, reason in zip(chosen.to_pylist(), reasons, strict=True)
    ]
    count = len(letters)
    return Rows(
        chosen.column("offset").to_numpy(),
        np.zeros(count, dtype=np.int64),
        Encoded(np.zeros(count, dtype=np.intp), (default_name(tp.partition),)),
        pa.RecordBatch.from_arrays([pa.array(letters, pa.string())], schema=DEAD_LETTER_SCHEMA),
    )


def _render(rows: pa.Table) -> bytes:
    return "".join(f"{line}\n" for line in rows.column("letter").to_pylist()).encode()


def _letter(tp: TopicPartition, row: dict[str, Any], reason: str) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": row["offset"],
        "timestamp": row["timestamp"],
        "timestamp_type": row["timestamp_type"],
        "reason": reason,
        "key": _base64(row["key"]),
        "value": _base64(row["value"]),
        "headers": [
            {"key": header["key"], "value": _base64(header["value"])} for header in row["headers"]
        ],
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
