"""`sidetier serve`: serve the archive to Kafka clients."""

import ipaddress
import math
from pathlib import Path
from typing import Final

import click

from sidetier.cli.arguments import checked_duration
from sidetier.cli.extras import from_extra, require_packages
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.config.units import parse_size

Address = tuple[str, int]
RELAY: Final = "relay="
"""Prefix of the value of --groups that names a live cluster."""
_EXTRA: Final = ("cramjam", "numpy", "pyarrow")
_LEAST_MEMORY: Final = 16 << 20
_MOST_PORT: Final = 65535
_FOR_EVER: Final = "forever"
_DAY: Final = 86_400.0
_FILE: Final = click.Path(path_type=Path)


def parse_address(text: str) -> Address:
    """Parse HOST:PORT, with an IPv6 address in brackets.

    Raises:
        ValueError: It has another form.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdecimal():
        raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9092 or [::1]:9092")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not is_bracketed:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets: [::1]:9092")
    if int(port) > _MOST_PORT:
        raise ValueError(f"{text!r}: the port is above {_MOST_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only programs of this host can reach a listener at `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(
    _context: click.Context, _option: click.Parameter, given: str | None
) -> Address | None:
    try:
        return None if given is None else parse_address(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _size(given: str) -> int:
    try:
        return parse_size(given)
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is no size: {error}") from None


def _memory(_context: click.Context, _option: click.Parameter, given: str) -> int:
    size = _size(given)
    if size < _LEAST_MEMORY:
        raise click.BadParameter(f"at least {_LEAST_MEMORY >> 20} MiB are needed")
    return size


def _rate(_context: click.Context, _option: click.Parameter, given: str | None) -> int | None:
    rate = None if given is None else _size(given)
    if rate == 0:
        raise click.BadParameter("at least 1 byte is needed; leave the option out for no cap")
    return rate


def _send_timeout(context: click.Context, option: click.Parameter, given: str) -> float:
    seconds = checked_duration(context, option, given)
    if seconds is None or seconds < 1:
        raise click.BadParameter("at least 1s is needed")
    return seconds


def _group_retention(
    context: click.Context, option: click.Parameter, given: str | None
) -> float | None:
    if given == _FOR_EVER:
        return math.inf
    seconds = checked_duration(context, option, given)
    if seconds is not None and seconds < _DAY:
        raise click.BadParameter(f"at least 1d is needed; {_FOR_EVER} keeps all groups")
    return seconds


def _groups(_context: click.Context, _option: click.Parameter, given: str) -> str:
    if given in {"none", "local"} or (given.startswith(RELAY) and given != RELAY):
        return given
    raise click.BadParameter(f"{given!r} is not none, local or relay=HOST:PORT[,HOST:PORT]")


def refuse_insecure(host: str, *, has_tls: bool, has_users: bool, has_client_ca: bool) -> None:
    """Refuse what needs `--insecure`.

    Raises:
        UsageError: Other hosts could read records without a login or unencrypted, or logins would
            be sent unencrypted.
    """
    if has_users and not has_tls:
        raise click.UsageError(
            "--users without --tls-certificate: logins and records would be sent unencrypted; "
            "add --tls-certificate, or --insecure if the network is trusted"
        )
    if is_loopback(host) or (has_tls and (has_users or has_client_ca)):
        return
    lacking = "without a login" if has_tls else "without a login and unencrypted"
    raise click.UsageError(
        f"--listen {host}: other hosts could read every topic, {lacking}; add --tls-certificate "
        "and --users, or listen at 127.0.0.1, or add --insecure if the network is trusted"
    )


@click.command(name="serve")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    callback=_address,
    help="Address to listen at; an IPv6 address in brackets. [::] is all IPv4 and IPv6 addresses.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    callback=_address,
    help="Address at which clients reach the endpoint; an IPv6 address in brackets.  "
    "[default: that of --listen]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    default="256MiB",
    show_default=True,
    callback=_memory,
    help="Memory for segments that are fetched ahead of the clients, shared by all clients. "
    "Segments of file:// stores that are not encrypted take none of it: they are sent from the "
    "page cache.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of open connections; others are closed at once. The hard limit of open "
    "files must be 400 higher.",
)
@click.option(
    "--max-connections-per-host",
    type=click.IntRange(1),
    help="The same for the connections from one address.  [default: 80 % of --max-connections]",
)
@click.option(
    "--max-bytes-per-second",
    metavar="SIZE",
    callback=_rate,
    help="Maximum bytes of records per second to all clients together, such as 50MB. "
    "The users file can have a cap for each user.  [default: no cap]",
)
@click.option(
    "--send-timeout",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=_send_timeout,
    help="Time in which a client must take an answer; a slower client is disconnected.",
)
@click.option(
    "--tls-certificate",
    metavar="FILE",
    type=_FILE,
    help="Certificate of the endpoint in PEM form, with its intermediate certificates. Turns TLS "
    "on. Renewed files are used without a restart.",
)
@click.option(
    "--tls-key",
    metavar="FILE",
    type=_FILE,
    help="Private key of the certificate.  [default: in the file of --tls-certificate]",
)
@click.option(
    "--tls-client-ca",
    metavar="FILE",
    type=_FILE,
    help="Require client certificates, and accept those that an authority in this PEM file issued.",
)
@click.option(
    "--users",
    metavar="FILE",
    type=_FILE,
    help="YAML file with the users, and the topics and groups that each may use. Turns logins on: "
    "SASL with SCRAM-SHA-256 or SCRAM-SHA-512, and PLAIN over TLS. A changed file is used without "
    "a restart. `sidetier scram-credential` makes entries.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow what is safe only in a trusted network: a --listen address that other hosts can "
    "reach without TLS and logins (--users or --tls-client-ca), and logins without TLS.",
)
@click.option(
    "--groups",
    metavar="none|local|relay=BOOTSTRAP",
    default="none",
    show_default=True,
    callback=_groups,
    help="Coordinator of consumer groups. none: no groups; clients assign partitions themselves. "
    "local: this endpoint, for the classic protocol; it writes committed offsets to the store, and "
    "must be the only such endpoint of the archive. "
    "relay=HOST:PORT[,HOST:PORT]: a live cluster, to which the endpoint relays the requests.",
)
@click.option(
    "--groups-properties",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Properties file of the client of the cluster of --groups relay, such as "
    "security.protocol and sasl.username. A changed file is used without a restart.",
)
@click.option(
    "--group-retention",
    metavar="DURATION",
    callback=_group_retention,
    help="Time for which --groups local keeps the committed offsets of a group without members and "
    "commits, such as 30d; at least 1d. They are deleted up to 7 h later. forever keeps them for "
    "ever.  [default: 7d]",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Serve Prometheus metrics, /healthz and /readyz on this port.  [default: none]",
)
@configuration_options
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    listen: Address,
    advertise: Address | None,
    memory: int,
    max_connections: int,
    max_connections_per_host: int | None,
    max_bytes_per_second: int | None,
    send_timeout: float,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    users: Path | None,
    insecure: bool,
    groups: str,
    groups_properties: Path | None,
    group_retention: float | None,
    metrics_port: int | None,
) -> None:
    """Serve the archived topics to Kafka clients, read-only, without any broker.

    Clients read the archive as they read a cluster: topics, partitions, offsets, timestamps and
    transactions are those of the archived cluster. Producers are refused. Consumer groups need
    --groups. The endpoint runs until SIGTERM or Ctrl-C.

    \b
    Example:
      sidetier serve --listen 127.0.0.1:9092 --config /etc/sidetier/sidetier.yaml
      kcat -b 127.0.0.1:9092 -C -t orders -o beginning

    Exit codes: 0 stopped by a signal; 1 the archive cannot be read, or the cluster of
    --groups refuses the login; 2 a setting or an argument is
    wrong.
    """  # noqa: D301 -- \b is click's marker and must be one character
    if tls_certificate is None and (tls_key is not None or tls_client_ca is not None):
        raise click.UsageError("--tls-key and --tls-client-ca need --tls-certificate")
    if not insecure:
        refuse_insecure(
            listen[0],
            has_tls=tls_certificate is not None,
            has_users=users is not None,
            has_client_ca=tls_client_ca is not None,
        )
    if advertise is None and listen[0] in {"0.0.0.0", "::"}:  # noqa: S104 -- refused, not bound
        raise click.UsageError(
            f"--listen {listen[0]} is no address that clients can connect to: add --advertise"
        )
    if groups_properties is not None and not groups.startswith(RELAY):
        raise click.UsageError("--groups-properties is for --groups relay=HOST:PORT")
    if group_retention is not None and groups != "local":
        raise click.UsageError("--group-retention is for --groups local")
    loaded = invocation(context).load(needs_log_dirs=False)

    def run() -> int:
        from sidetier.cli.serve import serve  # noqa: PLC0415 -- `--help` must not load the libraries

        require_packages(_EXTRA)  # some are imported at the first request that needs them
        return serve(
            loaded,
            listen,
            advertise,
            memory=memory,
            max_connections=max_connections,
            # Four fifths, rounded up: one host cannot keep all others out.
            max_connections_per_host=max_connections_per_host or -(-max_connections * 4 // 5),
            bytes_per_second=max_bytes_per_second,
            send_timeout=send_timeout,
            tls_files=(tls_certificate, tls_key, tls_client_ca),
            users=users,
            groups=groups,
            groups_properties=groups_properties,
            group_retention=group_retention,
            metrics_port=metrics_port,
        )

    context.exit(from_extra(run, "sidetier serve", _EXTRA, "consumer"))
