"""A broker's own files, as tests read them."""

from pathlib import Path

from tests.harness.waiting import wait_until

SEGMENT_BYTES = 32 * 1024


def small_segments(
    version: str = "4.3.1", size: int = SEGMENT_BYTES, **more: object
) -> dict[str, object]:
    """Return topic settings for small segments; names in `more` have underscores for dots."""
    name = "internal.segment.bytes" if version >= "4.1" else "segment.bytes"
    return {name: size, **{key.replace("_", "."): value for key, value in more.items()}}


def log_bases(directory: Path) -> list[int]:
    """Return the base offsets of a partition's live `.log` files, the active one last."""
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def bases_marked_for_deletion(directory: Path) -> list[int]:
    """Return the base offsets of a partition's `.log.deleted` files."""
    return sorted(int(path.name[:20]) for path in directory.glob("*.log.deleted"))


def closed_end(directory: Path) -> int:
    """Return one past the last offset in a closed segment: the base offset of the active one."""
    return log_bases(directory)[-1]


def wait_until_gone(directory: Path, below: int, timeout: float = 90.0) -> None:
    """Wait until the broker has unlinked every segment that begins below an offset."""

    def gone() -> bool:
        bases = [*log_bases(directory), *bases_marked_for_deletion(directory)]
        return bool(bases) and min(bases) >= below

    wait_until(gone, timeout, f"the broker to delete {directory.name} below {below}")
