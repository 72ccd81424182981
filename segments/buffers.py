"""Reusable memory."""


def is_exported(buffer: bytearray) -> bool:
    """Return whether a memoryview, an array or another buffer refers to the memory.

    Python refuses to resize a `bytearray` whose memory is exported.
    """
    try:
        # The only test that Python offers: it resizes the memory and changes no byte.
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False
