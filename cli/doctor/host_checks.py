"""Checks of this host: limits, disks and permissions. Pure."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sidetier.cli.arguments import size_text
from sidetier.cli.doctor.facts import DoctorFacts, LogDirFacts
from sidetier.cli.doctor.findings import Finding, advice, ok, problem, some

_OTHER_FILES: Final = 512
_FILES_PER_SEGMENT: Final = 3
_OTHER_INSTANCES: Final = 2
"""One for the metadata log, one for a short time at the start."""


def check_host(facts: DoctorFacts) -> Iterator[Finding]:
    """Run all checks of this host."""
    for check in _HOST_CHECKS:
        yield from check(facts)


def log_dirs(facts: DoctorFacts) -> Iterator[Finding]:
    """Check that the log dirs are readable, belong to one broker, and are all that it has."""
    problems = [*facts.host.problems]
    problems += [
        f"{log_dir.unreadable} cannot be read"
        for log_dir in facts.host.log_dirs
        if log_dir.unreadable
    ]
    if problems:
        yield problem(
            "log dirs",
            "; ".join(problems),
            "name the broker's log.dirs, and run as the broker's user or in its group",
            "log_dirs: [/var/lib/kafka/data]",
        )
    missing = _missing_log_dirs(facts)
    if missing:
        yield problem(
            "log dirs",
            f"the broker has others too: {some(missing)}; nothing in them is archived",
            "name every one of the broker's log.dirs",
            f"log_dirs: [..., {missing[0]}]",
        )
    if not problems and not missing:
        yield ok("log dirs", f"{len(facts.host.log_dirs)}, readable, of one broker")


def _missing_log_dirs(facts: DoctorFacts) -> list[str]:
    """Return the broker's log dirs that are not configured.

    Empty if no path matches: in this container the same directories may have other paths.
    """
    broker_log_dirs = (
        facts.broker_settings.get("log.dirs") or facts.broker_settings.get("log.dir") or ""
    )
    broker = {str(Path(name.strip())) for name in broker_log_dirs.split(",") if name.strip()}
    ours = set(map(str, facts.config.log_dirs))
    return sorted(broker - ours) if broker & ours else []


def open_files(facts: DoctorFacts) -> Iterator[Finding]:
    """Compare the hard limit of open files (`ulimit -n`) with what pins need."""
    limit, wanted = facts.host.max_open_files, facts.config.uploader.pins.max_files
    if limit is None or limit >= wanted + _OTHER_FILES:
        shown_limit = "unlimited" if limit is None else str(limit)
        yield ok("open files", f"{shown_limit}, enough for uploader.pins.max_files {wanted}")
        return
    led = len(facts.partitions)
    setting = f"ulimit -n {wanted + _OTHER_FILES} (LimitNOFILE= in systemd)"
    limit_text = f"{limit} at most for this user"
    if limit - _OTHER_FILES < _FILES_PER_SEGMENT * led:
        text = f"{limit_text}: not one closed segment for each of {led} partitions can be held open"
        yield problem("open files", text, "raise the hard limit", setting)
    else:
        text = f"{limit_text}, less than uploader.pins.max_files {wanted} and {_OTHER_FILES} more"
        yield advice("open files", text, "raise the hard limit, or lower max_files", setting)


def inotify(facts: DoctorFacts) -> Iterator[Finding]:
    """Check the limits of inotify watches and instances.

    If they are too low, the sidecar polls, or does not start.
    """
    if facts.config.uploader.watch == "polling":
        yield ok("inotify", "not used: uploader.watch is polling")
        return
    dirs = len(facts.config.log_dirs)
    wants = (
        ("max_user_watches", facts.host.max_watches, facts.host.partition_directories + dirs),
        ("max_user_instances", facts.host.max_instances, dirs + _OTHER_INSTANCES),
    )
    short = [_short_of(facts, *want) for want in wants if want[1] is not None and want[1] < want[2]]
    yield from short
    if not short:
        yield ok("inotify", f"room for {wants[0][2]} watches and {wants[1][2]} instances")


def _short_of(facts: DoctorFacts, name: str, limit: int | None, wanted: int) -> Finding:
    setting = f"sysctl fs.inotify.{name}={4 * wanted}"
    shortage = f"{name} is {limit}, and {wanted} are needed"
    if facts.config.uploader.watch == "inotify":
        text = f"{shortage}: with uploader.watch: inotify it does not start"
        return problem("inotify", text, "raise it", setting)
    return advice("inotify", f"{shortage}: it polls instead", "raise it", setting)


def room_for_pins(facts: DoctorFacts) -> Iterator[Finding]:
    """Check the free disk above the floor, for segments that are deleted and not stored yet."""
    findings = [_room(facts, log_dir) for log_dir in facts.host.log_dirs]
    yield from (finding for finding in findings if finding is not None)
    if findings and not any(findings):
        yield ok("room for pins", "uploader.pins.max_deleted_bytes fits above the floor")


def _room(facts: DoctorFacts, log_dir: LogDirFacts) -> Finding | None:
    pins = facts.config.uploader.pins
    floor = pins.min_free_disk.of(log_dir.total)
    room = log_dir.free - floor
    free_text = f"{log_dir.path}: {size_text(log_dir.free)} of {size_text(log_dir.total)} free"
    if room <= 0:
        return problem(
            "room for pins",
            f"{free_text}, at or below the floor of {size_text(floor)}: what the broker deletes "
            "before it is stored is lost",
            "free disk, or lower the floor",
            "uploader.pins.min_free_disk",
        )
    if room < pins.max_deleted_bytes:
        return advice(
            "room for pins",
            f"{free_text}: {size_text(room)} above the floor, less than the "
            f"{size_text(pins.max_deleted_bytes)} that pins may hold",
            "free disk, or know that pins end sooner",
            "uploader.pins.max_deleted_bytes",
        )
    return None


def spool(facts: DoctorFacts) -> Iterator[Finding]:
    """Check whether the spool allows hard links; only `sidetier run` makes one to find out."""
    if not facts.host.spools:
        yield ok("spool", "none (uploader.pins.spool): a restart finds what has a name still")
        return
    faults = [fault for log_dir in facts.host.log_dirs if (fault := _spool_fault(facts, log_dir))]
    if not faults:
        yield ok("spool", "one on the file system of each log dir, and links are allowed")
        return
    yield problem(
        "spool",
        "; ".join(faults),
        "one writable directory for each mount, and the broker's user (fs.protected_hardlinks)",
        "uploader.pins.spool",
    )


def _spool_fault(facts: DoctorFacts, log_dir: LogDirFacts) -> str | None:
    same_device = [
        candidate for candidate in facts.host.spools if candidate.device == log_dir.device
    ]
    if not same_device:
        return f"none is on the file system of {log_dir.path}"
    if not same_device[0].writable:
        return f"{same_device[0].path} cannot be written"
    return None if log_dir.may_link else f"the files of {log_dir.path} may not be linked"


def page_cache(facts: DoctorFacts) -> Iterator[Finding]:
    """Check whether uploads can leave the page cache as they found it."""
    if facts.config.uploader.page_cache == "leave":
        yield ok("page cache", "left alone: uploader.page_cache is leave")
        return
    blind = [log_dir for log_dir in facts.host.log_dirs if log_dir.cache_problem is not None]
    if not blind:
        yield ok("page cache", "can be asked about the broker's files")
        return
    yield advice(
        "page cache",
        f"{blind[0].path}: cannot be asked ({blind[0].cache_problem}), so an upload may leave the "
        "broker's page cache full of what nobody reads",
        "run as the broker's user, on Linux 6.5 or newer",
    )


_HOST_CHECKS: Final[tuple[Callable[[DoctorFacts], Iterator[Finding]], ...]] = (
    log_dirs,
    open_files,
    inotify,
    room_for_pins,
    spool,
    page_cache,
)
