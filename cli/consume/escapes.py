"""Escape sequences in delimiters of the command line."""

from typing import Final

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEX_DIGITS: Final = 2


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a delimiter: \n, \t, \r, \0, a doubled backslash and \xHH are one byte
    each.

    Raises:
        ValueError: Anything else follows a backslash.
    """
    result, rest = b"", text
    while rest:
        before, slash, behind = rest.partition("\\")
        result += before.encode()
        if not slash:
            break
        if behind[:1] in _ESCAPES and behind:
            result, rest = result + _ESCAPES[behind[0]], behind[1:]
        else:
            result, rest = result + _hex(behind, text), behind[1 + _HEX_DIGITS :]
    return result


def _hex(behind: str, text: str) -> bytes:
    digits = behind[1 : 1 + _HEX_DIGITS]
    try:
        if behind[:1] == "x" and len(digits) == _HEX_DIGITS:
            return bytes([int(digits, 16)])
    except ValueError:
        pass
    raise ValueError(f"{text!r}: behind a backslash stands n, t, r, 0, xHH or another backslash")
