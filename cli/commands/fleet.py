"""`sidetier fleet status | serve`."""

import functools
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import EXISTING_FILE, age_text, most_lines, size_text
from sidetier.cli.commands.serve import ADDRESS, Address, is_loopback, parse_address
from sidetier.cli.inspect.sidecar import FleetTls, ask_page, bearer_token_of, checked_url
from sidetier.cli.invocation import Invocation
from sidetier.cli.options import CONFIGURATION, OUTPUT, group, option, options
from sidetier.cli.output import Columns, OutputFormat, Table, table_of
from sidetier.config.fleet import FleetConfig
from sidetier.config.model import HttpConfig
from sidetier.config.types import SecretRef
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.fleet import Fields, Fleet, FleetSidecar, by_cluster, url_of_address
from sidetier.telemetry.partition_page import PartitionQuery
from sidetier.telemetry.status import Condition, FixedStatus, StatusSnapshot

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from sidetier.telemetry.http import HttpServer


@dataclass(frozen=True, slots=True)
class FleetResult:
    """The sidecars of a fleet, those that need an operator first."""

    sidecars: Sequence[FleetSidecar]

    @property
    def exit_code(self) -> int:
        """Exit code."""
        if all(sidecar.answer is None for sidecar in self.sidecars):
            return exits.FAILED
        is_fine = all(sidecar.ready and not sidecar.problems for sidecar in self.sidecars)
        return exits.OK if is_fine else exits.FINDINGS

    def as_json(self) -> object:
        """Return one object for each sidecar."""
        return {"sidecars": [sidecar.as_json() for sidecar in self.sidecars]}

    def as_tables(self) -> Sequence[Table]:
        """Return one row for each sidecar, and a summary of each cluster as footer."""
        reasons = [f"{s.address}: {s.reason}" for s in self.sidecars if not s.ready]
        footer = "\n".join([*most_lines(reasons), *self._summaries()])
        return (table_of(self.sidecars, _COLUMNS, footer),)

    def _summaries(self) -> Sequence[str]:
        """Return a line for all sidecars, and one for each cluster, whose sums are its own."""
        sidecars = self.sidecars
        ready = sum(sidecar.ready for sidecar in sidecars)
        unreachable = sum(sidecar.answer is None for sidecar in sidecars)
        first = f"{len(sidecars)} sidecars: {ready} ready, {unreachable} unreachable"
        clusters = [
            f"{cluster}: {_sums_text(members)}" for cluster, members in by_cluster(sidecars).items()
        ]
        return first, *clusters


def _sums_text(sidecars: Sequence[FleetSidecar]) -> str:
    totals = [sidecar.totals for sidecar in sidecars]
    size = size_text(sum(fields["unarchived_bytes"] for fields in totals))
    return (
        f"{sum(fields['partitions'] for fields in totals)} partitions, "
        f"{sum(sidecar.problems for sidecar in sidecars)} with problems; "
        f"{size} are only on the brokers"
    )


def _answer(sidecar: FleetSidecar) -> Fields:
    return sidecar.answer or {}


_COLUMNS: Final[Columns[FleetSidecar]] = {
    "SIDECAR": lambda sidecar: sidecar.address,
    "CLUSTER": lambda sidecar: _answer(sidecar).get("cluster"),
    "BROKER": lambda sidecar: _answer(sidecar).get("broker_id"),
    "STATE": lambda sidecar: (
        "unreachable" if sidecar.answer is None else "ready" if sidecar.ready else "not ready"
    ),
    "VERSION": lambda sidecar: _answer(sidecar).get("version"),
    "PARTITIONS": lambda sidecar: sidecar.totals["partitions"] if sidecar.answer else None,
    "PROBLEMS": lambda sidecar: sidecar.problems if sidecar.answer else None,
    "NOT ARCHIVED": lambda sidecar: (
        size_text(sidecar.totals["unarchived_bytes"]) if sidecar.answer else None
    ),
    "OLDEST": lambda sidecar: age_text(sidecar.totals["oldest_age_seconds"]),
    "WORST PARTITION": lambda sidecar: sidecar.worst or None,
}


def _host_and_port(text: str) -> str:
    checked_url(url_of_address(text))
    if ":" not in text.rpartition("/")[2]:
        raise ValueError(f"{text!r}: expected HOST:PORT")
    return text


def _name_and_port(text: str) -> str:
    parse_address(text)
    return text


@options
class FleetOptions:
    """Which sidecars, and how to ask them."""

    sidecars: tuple[str, ...] = option(
        "--sidecar",
        metavar="HOST:PORT",
        parse=_host_and_port,
        help="A sidecar to ask; repeatable.  [default: fleet.sidecars]",
    )
    dns: str | None = option(
        "--dns",
        metavar="NAME:PORT",
        parse=_name_and_port,
        help="DNS name; each of its addresses is a sidecar to ask.  [default: fleet.dns]",
    )
    timeout: float | None = option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(0, min_open=True),
        help="Time limit for the answers.  [default: fleet.timeout, else 5]",
    )
    tls: bool | None = option(
        "--tls/--no-tls",
        default=None,
        help="Ask addresses without a scheme, and those of --dns, by HTTPS: a proxy before the "
        "sidecars has a certificate with that name. Without it, the token goes in plain text "
        "to every address that DNS returns.  [default: fleet.tls]",
    )
    ca_bundle: Path | None = option(
        "--ca-bundle",
        type=EXISTING_FILE,
        help="File with the CAs of these certificates.  [default: fleet.ca_bundle, else those "
        "of the system]",
    )
    bearer_token_file: Path | None = option(
        "--bearer-token-file",
        type=EXISTING_FILE,
        help="File with the token that the sidecars require.  [default: http.bearer_token]",
    )
    call: Invocation = CONFIGURATION


@dataclass(frozen=True, slots=True)
class FleetSource:
    """The fleet, and settings of the page."""

    fleet: Fleet
    bearer_token: Callable[[], str | None]
    http: HttpConfig


def _opened(options: FleetOptions) -> FleetSource:
    """Return the fleet that options name, else the configured fleet."""
    call = options.call
    fleet, http = FleetConfig(), HttpConfig()
    if call.is_configured():
        config = call.load(needs_log_dirs=False).config
        fleet, http = config.fleet, config.http
    sidecars, dns, token_file = options.sidecars, options.dns, options.bearer_token_file
    if not sidecars and dns is None:
        sidecars, dns = tuple(fleet.sidecars), fleet.dns

    def token() -> str | None:
        if token_file is not None:
            return SecretRef(file=token_file.absolute()).resolve()
        return bearer_token_of(http)

    trust = trusted(options.ca_bundle or fleet.ca_bundle)
    name = None if dns is None else dns.rpartition(":")[0]
    asked = Fleet(
        sidecars,
        dns,
        timeout=fleet.timeout if options.timeout is None else options.timeout,
        tls=fleet.tls if options.tls is None else options.tls,
        bearer_token=token,
        ask=functools.partial(ask_page, tls=FleetTls(trust, name)),
    )
    return FleetSource(asked, token, http)


def trusted(ca_bundle: Path | None) -> ssl.SSLContext:
    """Return a context that trusts these CAs; None for the system's CAs.

    Raises:
        ConfigurationError: The file cannot be read, or has no certificates.
    """
    try:
        return ssl.create_default_context(cafile=None if ca_bundle is None else str(ca_bundle))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"fleet.ca_bundle {ca_bundle}: {error}") from None


@click.group(name="fleet")
def command() -> None:
    """Show the status of the sidecars of all brokers.

    \b
    Example:
      sidetier fleet status --dns sidetier.kafka.svc:9108

    Exit codes: see each command.
    """  # noqa: D301 -- \b is click's marker and must be one character


@options
class StatusOptions:
    """Options of `sidetier fleet status`."""

    fleet: FleetOptions = group()
    output: OutputFormat = OUTPUT


@kernel.command("status", parent=command)
def status(options: StatusOptions) -> FleetResult:
    """Ask every sidecar for its status, and show one line for each.

    Sidecars that do not answer come first, then those that are not ready, then those with the most
    problems. PROBLEMS has the partitions that are halted, near deletion, held, being moved to
    quarantine, or have a gap. WORST PARTITION has the most severe one and what it waits for.

    \b
    Example:
      sidetier fleet status --sidecar kafka-1:9108 --sidecar kafka-2:9108

    Exit codes: 0 every sidecar is ready and has no problem; 1 no sidecar answers, or the DNS name
    cannot be resolved; 2 no sidecars are configured; 3 a sidecar does not answer or is not ready,
    or a partition has a problem.
    """  # noqa: D301 -- \b is click's marker and must be one character
    source = _opened(options.fleet)
    with closing(source.fleet):
        return FleetResult(source.fleet.sidecars(PartitionQuery(limit=1)))


@options
class ServeOptions:
    """Options of `sidetier fleet serve`."""

    listen: Address = option(
        "--listen",
        type=ADDRESS,
        default="127.0.0.1:9109",
        help="Address to listen at.",
    )
    insecure: bool = option(
        "--insecure",
        help="Allow a --listen address that other hosts can reach, without a bearer token.",
    )
    fleet: FleetOptions = group()


@kernel.command("serve", parent=command)
def serve(options: ServeOptions) -> int:
    """Serve the status page of all sidecars, until stopped by SIGTERM or Ctrl-C.

    The command asks the sidecars and merges their answers, so a browser needs to reach this address
    only. If the sidecars require a bearer token, the page requires the same one.

    \b
    Example:
      sidetier fleet serve --dns sidetier.kafka.svc:9108

    Exit codes: 0 stopped by a signal; 2 a setting or an argument is wrong, or the port is taken.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.signals import handled_signals  # noqa: PLC0415 -- only a server needs it

    source, listen = _opened(options.fleet), options.listen
    source.fleet.check_configured()
    has_token = source.bearer_token() is not None
    if not has_token and not options.insecure and not is_loopback(listen[0]):
        raise click.UsageError(
            f"--listen {listen[0]}: other hosts could read the status without a login; set "
            "http.bearer_token, or listen at 127.0.0.1, or add --insecure if the network is trusted"
        )
    stop = threading.Event()
    with (
        handled_signals(stop.set),
        closing(source.fleet),
        fleet_server(source, listen) as server,
    ):
        click.echo(f"the fleet's status page is at {server.url}", err=True)
        stop.wait()
    return exits.OK


_LISTENING: Final = StatusSnapshot("", conditions=(Condition("listening", holds=True),))
"""Status of `fleet serve` itself: it is ready while it listens."""


def _always_paged(application: "WSGIApplication") -> "WSGIApplication":
    """Answer `/api/partitions` without parameters with a page too: a fleet has too many for one."""

    def paged(environ: "WSGIEnvironment", respond: "StartResponse") -> Iterable[bytes]:
        # `offset` alone asks for a page; a later, empty value would replace an earlier one.
        query = f"offset=0&{environ.get('QUERY_STRING', '')}"
        return application({**environ, "QUERY_STRING": query}, respond)

    return paged


def fleet_server(source: FleetSource, listen: Address) -> "HttpServer":
    """Return the server of the page, not started."""
    from sidetier.telemetry.allowed_hosts import AllowedHosts  # noqa: PLC0415 -- only a server needs it
    from sidetier.telemetry.http import HttpServer  # noqa: PLC0415 -- only a server needs it
    from sidetier.telemetry.metrics import create_registry  # noqa: PLC0415
    from sidetier.telemetry.pages import Application  # noqa: PLC0415

    def page(query: PartitionQuery) -> dict[str, Any]:
        return source.fleet.page(query, source.http.runbook_url)

    token = source.bearer_token
    application = Application(
        create_registry(),
        FixedStatus(_LISTENING),
        None if token() is None else lambda: token() or "",
        pages=page,
        hosts=AllowedHosts(source.http.allowed_hosts),
    )
    return HttpServer(*listen, _always_paged(application), settings="--listen")
