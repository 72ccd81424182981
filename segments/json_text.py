"""Parse JSON that others have written: stored objects, answers of servers, nodes of ZooKeeper."""

import json
import math
from typing import Any, Final, NoReturn


def parse_json(data: str | bytes) -> Any:  # noqa: ANN401 -- JSON
    """Parse a JSON document, of bytes in UTF-8, UTF-16 or UTF-32.

    Unlike `json.loads` it raises one type of error, and returns no number that `int` cannot
    convert.

    Raises:
        ValueError: It is not JSON (RFC 8259), its values are nested too deeply, or a number is
            beyond the range of a float.
    """
    text = data
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]} is beyond the range of a float")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
