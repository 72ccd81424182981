"""Checks of this host: limits, disks, permissions; pure."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sidetier.cli.arguments import size_text
from sidetier.cli.doctor.facts import DoctorFacts, LogDirFacts
from sidetier.cli.doctor.findings import Finding, advice, ok, problem, some

_OTHER_FILES: Final = 512
_FILES_PER_SEGMENT: Final = 3
_OTHER_INSTANCES: Final = 2
"""One for the metadata log, one for a moment at the start."""


def check_host(facts: DoctorFacts) -> Iterator[Finding]:
    """All of them."""
    for check in _CHECKS:
        yield from check(facts)


def log_dirs(facts: DoctorFacts) -> Iterator[Finding]:
    """There, readable, of one broker, and all of them."""
    wrong = [*facts.host.problems]
    wrong += [f"{one.unreadable} cannot be read" for one in facts.host.log_dirs if one.unreadable]
    if wrong:
        yield problem(
            "log dirs",
            "; ".join(wrong),
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
    if not wrong and not missing:
        yield ok("log dirs", f"{len(facts.host.log_dirs)}, readable, of one broker")


def _missing_log_dirs(facts: DoctorFacts) -> list[str]:
    """As the broker names them; in another container they may have other names here."""
    told = facts.broker_settings.get("log.dirs") or facts.broker_settings.get("log.dir") or ""
    broker = {str(Path(name.strip())) for name in told.split(",") if name.strip()}
    ours = set(map(str, facts.config.log_dirs))
    return sorted(broker - ours) if broker & ours else []


def open_files(facts: DoctorFacts) -> Iterator[Finding]:
    """`ulimit -n`, as far as the hard limit allows, against what pins want."""
    limit, wanted = facts.host.max_open_files, facts.config.uploader.pins.max_files
    if limit is None or limit >= wanted + _OTHER_FILES:
        shown = "unlimited" if limit is None else str(limit)
        yield ok("open files", f"{shown}, enough for uploader.pins.max_files {wanted}")
        return
    led = len(facts.partitions)
    setting = f"ulimit -n {wanted + _OTHER_FILES} (LimitNOFILE= in systemd)"
    found = f"{limit} at most for this user"
    if limit - _OTHER_FILES < _FILES_PER_SEGMENT * led:
        text = f"{found}: not one closed segment for each of {led} partitions can be held open"
        yield problem("open files", text, "raise the hard limit", setting)
    else:
        text = f"{found}, less than uploader.pins.max_files {wanted} and {_OTHER_FILES} more"
        yield advice("open files", text, "raise the hard limit, or lower max_files", setting)


def inotify(facts: DoctorFacts) -> Iterator[Finding]:
    """Watches and instances; without enough it polls, or does not start."""
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
    found = f"{name} is {limit}, and {wanted} are needed"
    if facts.config.uploader.watch == "inotify":
        text = f"{found}: with uploader.watch: inotify it does not start"
        return problem("inotify", text, "raise it", setting)
    return advice("inotify", f"{found}: it polls instead", "raise it", setting)


def room_for_pins(facts: DoctorFacts) -> Iterator[Finding]:
    """Free disk for what is deleted and not stored yet, above the floor."""
    findings = [_room(facts, log_dir) for log_dir in facts.host.log_dirs]
    yield from (finding for finding in findings if finding is not None)
    if findings and not any(findings):
        yield ok("room for pins", "uploader.pins.max_deleted_bytes fits above the floor")


def _room(facts: DoctorFacts, log_dir: LogDirFacts) -> Finding | None:
    pins = facts.config.uploader.pins
    floor = pins.min_free_disk.of(log_dir.total)
    room = log_dir.free - floor
    found = f"{log_dir.path}: {size_text(log_dir.free)} of {size_text(log_dir.total)} free"
    if room <= 0:
        return problem(
            "room for pins",
            f"{found}, at or below the floor of {size_text(floor)}: what the broker deletes "
            "before it is stored is lost",
            "free disk, or lower the floor",
            "uploader.pins.min_free_disk",
        )
    if room < pins.max_deleted_bytes:
        return advice(
            "room for pins",
            f"{found}: {size_text(room)} above the floor, less than the "
            f"{size_text(pins.max_deleted_bytes)} that pins may hold",
            "free disk, or know that pins end sooner",
            "uploader.pins.max_deleted_bytes",
        )
    return None


def spool(facts: DoctorFacts) -> Iterator[Finding]:
    """Whether links can be made in the spool; `sidetier run` tries it, this only looks."""
    if not facts.host.spools:
        yield ok("spool", "none (uploader.pins.spool): a restart finds what has a name still")
        return
    wrong = [fault for one in facts.host.log_dirs if (fault := _spool_fault(facts, one))]
    if not wrong:
        yield ok("spool", "one on the file system of each log dir, and links are allowed")
        return
    yield problem(
        "spool",
        "; ".join(wrong),
        "one writable directory for each mount, and the broker's user (fs.protected_hardlinks)",
        "uploader.pins.spool",
    )


def _spool_fault(facts: DoctorFacts, log_dir: LogDirFacts) -> str | None:
    here = [one for one in facts.host.spools if one.device == log_dir.device]
    if not here:
        return f"none is on the file system of {log_dir.path}"
    if not here[0].writable:
        return f"{here[0].path} cannot be written"
    return None if log_dir.may_link else f"the files of {log_dir.path} may not be linked"


def page_cache(facts: DoctorFacts) -> Iterator[Finding]:
    """Whether pages can be given back as they were found."""
    if facts.config.uploader.page_cache == "leave":
        yield ok("page cache", "left alone: uploader.page_cache is leave")
        return
    blind = [one for one in facts.host.log_dirs if one.cache_problem is not None]
    if not blind:
        yield ok("page cache", "can be asked about the broker's files")
        return
    yield advice(
        "page cache",
        f"{blind[0].path}: cannot be asked ({blind[0].cache_problem}), so an upload may leave the "
        "broker's page cache full of what nobody reads",
        "run as the broker's user, on Linux 6.5 or newer",
    )


_CHECKS: Final[tuple[Callable[[DoctorFacts], Iterator[Finding]], ...]] = (
    log_dirs,
    open_files,
    inotify,
    room_for_pins,
    spool,
    page_cache,
)
