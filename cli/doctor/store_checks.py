"""Checks of the stores, and of the sidecar that writes to them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sidetier.archive.objects.layout import check_note
from sidetier.cli.arguments import age_text
from sidetier.cli.doctor.facts import DoctorFacts, SidecarFacts, StoreFacts
from sidetier.cli.doctor.findings import Finding, advice, ok, problem, some
from sidetier.cli.stores import layout_of
from sidetier.segments.errors import ConfigurationError

_SKEW_ADVICE: Final = 60.0
_SKEW_PROBLEM: Final = 600.0
"""S3 refuses requests whose signature is 15 minutes off."""


def check_stores(facts: DoctorFacts) -> Iterator[Finding]:
    """Check each configured store."""
    for store in facts.stores:
        if store.error is not None:
            yield problem(
                "store", f"{store.url}: {store.error}", "bring it back, or correct `storage`"
            )
            continue
        yield ok("store", f"{store.url} answers")
        yield _layout(facts, store)
        yield _conditions(facts, store)
        yield from _clock(store)


def _layout(facts: DoctorFacts, store: StoreFacts) -> Finding:
    layout = layout_of(facts.config)
    if store.note is None:
        return ok("layout", f"no note yet: nothing is stored of cluster {layout.cluster}")
    try:
        check_note(store.note, layout, facts.host.kafka_cluster_id)
    except ConfigurationError as error:
        setting = f"storage.prefix_entropy_bits: {store.note.bits}"
        differs = max(store.note.bits, 0) != max(layout.bits, 0)
        todo = "nothing is found, and nothing may be written, until they agree"
        return problem("layout", str(error), todo, setting if differs else "cluster.name")
    return ok("layout", f"{layout.bits} entropy bits, as the note on the store says")


def _conditions(facts: DoctorFacts, store: StoreFacts) -> Finding:
    name, required = "conditional writes", facts.config.storage.fencing == "required"
    if store.honours_conditions is False:
        return problem(
            name,
            f"{store.url} ignores If-None-Match: two sidecars that both believe they lead would "
            "overwrite each other",
            "use a store that honours If-None-Match and If-Match on PUT",
        )
    if not store.declares_conditions:
        text = f"{store.url} has none: two sidecars at once are not kept apart"
        todo = "use another store, or make sure that there is never a second sidecar"
        setting = "storage.fencing: unfenced_acknowledged"
        return problem(name, text, todo, setting) if required else advice(name, text, todo)
    if store.honours_conditions:
        return ok(name, "honoured: a write that had to be refused was refused")
    return ok(name, "expected of this kind of store; --try-conditions tries it")


def _clock(store: StoreFacts) -> Iterator[Finding]:
    skew = store.skew_seconds
    if skew is None:
        return
    skew_text = (
        f"{store.url} is {age_text(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this host"
    )
    todo = "set this host's clock (NTP)"
    if abs(skew) >= _SKEW_PROBLEM:
        yield problem("clock", f"{skew_text}: S3 refuses requests that are 15 minutes off", todo)
    elif abs(skew) >= _SKEW_ADVICE:
        yield advice("clock", skew_text, todo)
    else:
        yield ok("clock", "agrees with the store's within a minute")


def check_sidecar(facts: DoctorFacts) -> Iterator[Finding]:
    """Check whether the sidecar runs, and what it reports."""
    if facts.sidecar is None:
        why = facts.problems.get("sidecar", "it was not asked")
        yield advice("sidecar", why, "start it: what is deleted meanwhile is not held by anybody")
        return
    yield _readiness(facts.sidecar)
    yield from _partitions(facts.sidecar)


def _readiness(sidecar: SidecarFacts) -> Finding:
    unmet = [f"{c['name']}: {c['reason']}" for c in sidecar.conditions if not c["holds"]]
    if sidecar.ready:
        return ok("sidecar", f"ready, {len(sidecar.partitions)} partitions")
    return problem("sidecar", f"not ready: {'; '.join(unmet) or 'starting'}", "see its log")


def _partitions(sidecar: SidecarFacts) -> Iterator[Finding]:
    halted = [_name(row) for row in sidecar.partitions if row["state"] == "halted"]
    if halted:
        yield problem("halted", f"partitions: {some(halted)}", "`sidetier status` says why")
    late = [_name(row) for row in sidecar.partitions if _overdue(row)]
    if late:
        yield problem(
            "deletion",
            f"due at the broker before they are stored: {some(late)}",
            "raise the topic's retention now; `sidetier status` says what they wait for",
        )


def _overdue(row: Mapping[str, Any]) -> bool:
    left = row["seconds_until_local_deletion"]
    return left is not None and left <= 0


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['topic']}-{row['partition']}"
