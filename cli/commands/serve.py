"""`sidetier serve`: serve the archive to Kafka clients."""

import ipaddress
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import click

from sidetier.cli import kernel
from sidetier.cli.arguments import DURATION, FILE, pattern, positive_size
from sidetier.cli.extras import RECORD_PACKAGES, needs_extra, require_packages
from sidetier.cli.invocation import Invocation
from sidetier.cli.options import CONFIGURATION, Parsed, option, options
from sidetier.config.units import parse_duration, parse_size

if TYPE_CHECKING:
    from sidetier.endpoint.live.client import LiveCluster
    from sidetier.endpoint.live.logs import LiveSettings

Address = tuple[str, int]
Preference = tuple[re.Pattern[str], float]
"""Names of topics, and the age in seconds up to which their records come from the brokers."""
RELAY: Final = "relay="
"""Prefix of the value of --groups that names a live cluster."""
_MIN_MEMORY: Final = 16 << 20
_MAX_PORT: Final = 65535
_FOR_EVER: Final = "forever"
_DAY: Final = 86_400.0
_LIVE_WINDOW: Final = 3600.0


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
    if int(port) > _MAX_PORT:
        raise ValueError(f"{text!r}: the port is above {_MAX_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)


ADDRESS: Final = Parsed(parse_address, "host:port")


def is_loopback(host: str) -> bool:
    """Return whether only programs of this host can reach a listener at `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _memory(text: str) -> int:
    size = parse_size(text)
    if size < _MIN_MEMORY:
        raise ValueError(f"at least {_MIN_MEMORY >> 20} MiB are needed")
    return size


def _send_timeout(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < 1:
        raise ValueError("at least 1s is needed")
    return seconds


def _group_retention(text: str) -> float:
    if text == _FOR_EVER:
        return math.inf
    seconds = parse_duration(text)
    if seconds < _DAY:
        raise ValueError(f"at least 1d is needed; {_FOR_EVER} keeps all groups")
    return seconds


def _groups(text: str) -> str:
    if text in {"none", "local"} or (text.startswith(RELAY) and text != RELAY):
        return text
    raise ValueError(f"{text!r} is not none, local or relay=HOST:PORT[,HOST:PORT]")


def parse_preference(text: str) -> Preference:
    """Parse `[TOPICS=]SIDE`. Raises ValueError: it has another form."""
    topics, separator, side = text.rpartition("=")
    names = re.compile(pattern(topics) if separator else ".*")
    window = {"broker": math.inf, "store": 0.0}.get(side)
    if window is None:
        try:
            window = parse_duration(side)
        except ValueError as error:
            raise ValueError(f"{side!r} is not broker, store or a duration: {error}") from None
    return names, window


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


@options
class ServeOptions:
    """Options of `sidetier serve`."""

    listen: Address = option(
        "--listen",
        type=ADDRESS,
        default="127.0.0.1:9092",
        help="Address to listen at; an IPv6 address in brackets. [::] is all IPv4 and IPv6 "
        "addresses.",
    )
    advertise: Address | None = option(
        "--advertise",
        type=ADDRESS,
        help="Address at which clients reach the endpoint; an IPv6 address in brackets.  "
        "[default: that of --listen]",
    )
    memory: int = option(
        "--memory",
        metavar="SIZE",
        default="256MiB",
        parse=_memory,
        help="Memory for segments that are fetched ahead of the clients, shared by all clients. "
        "Segments of file:// stores that are not encrypted take none of it: they are sent from the "
        "page cache.",
    )
    max_connections: int = option(
        "--max-connections",
        type=click.IntRange(1),
        default=1000,
        help="Maximum number of open connections; others are closed at once. The hard limit of "
        "open files must be 400 higher.",
    )
    max_connections_per_host: int | None = option(
        "--max-connections-per-host",
        type=click.IntRange(1),
        help="The same for the connections from one address.  [default: 80 % of --max-connections]",
    )
    max_bytes_per_second: int | None = option(
        "--max-bytes-per-second",
        metavar="SIZE",
        parse=positive_size,
        help="Maximum bytes of records per second to all clients together, such as 50MB. "
        "The users file can have a cap for each user.  [default: no cap]",
    )
    send_timeout: float = option(
        "--send-timeout",
        metavar="DURATION",
        default="60s",
        parse=_send_timeout,
        help="Time in which a client must take an answer; a slower client is disconnected.",
    )
    tls_certificate: Path | None = option(
        "--tls-certificate",
        metavar="FILE",
        help="Certificate of the endpoint in PEM form, with its intermediate certificates. Turns "
        "TLS on. Renewed files are used without a restart.",
    )
    tls_key: Path | None = option(
        "--tls-key",
        metavar="FILE",
        help="Private key of the certificate.  [default: in the file of --tls-certificate]",
    )
    tls_client_ca: Path | None = option(
        "--tls-client-ca",
        metavar="FILE",
        help="Require client certificates, and accept those that an authority in this PEM file "
        "issued.",
    )
    users: Path | None = option(
        "--users",
        metavar="FILE",
        help="YAML file with the users, and the topics and groups that each may use. Turns logins "
        "on: SASL with SCRAM-SHA-256 or SCRAM-SHA-512, and PLAIN over TLS. A changed file is used "
        "without a restart. `sidetier scram-credential` makes entries.",
    )
    insecure: bool = option(
        "--insecure",
        help="Allow what is safe only in a trusted network: a --listen address that other hosts "
        "can reach without TLS and logins (--users or --tls-client-ca), and logins without TLS.",
    )
    live: str | None = option(
        "--live",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Show the archive and this live cluster as one log. Records that the brokers have "
        "deleted come from the archive, and all newer ones from the brokers. Clients are given the "
        "address of the endpoint alone.",
    )
    live_properties: Path | None = option(
        "--live-properties",
        type=FILE,
        help="Properties file of the client of the live cluster, such as security.protocol and "
        "sasl.username. A changed file is used without a restart.",
    )
    prefer: tuple[Preference, ...] = option(
        "--prefer",
        metavar="[TOPICS=]SIDE",
        parse=parse_preference,
        help="Side that records come from if both have them: broker, store, or a DURATION as for "
        "--live-window. Of all topics, or of those whose names a regular expression matches; "
        "repeatable, and the first one that matches counts.",
    )
    live_window: float | None = option(
        "--live-window",
        type=DURATION,
        help="Age up to which records come from the brokers if both sides have them, of topics "
        "without --prefer: an application that reads older ones costs the brokers nothing.  "
        "[default: 1h]",
    )
    with_tail: bool = option(
        "--with-tail",
        help="Behind the end of the archive, read the records of active segments that tail packs "
        "have; see docs/tail.md. With --live: while no leader of a partition can be reached. Lists "
        "the packs every 5 seconds at most while clients read, and every 30 seconds to find "
        "partitions that only packs have. All endpoints of one address need it.",
    )
    groups: str | None = option(
        "--groups",
        metavar="none|local|relay=BOOTSTRAP",
        parse=_groups,
        help="Coordinator of consumer groups. none: no groups; clients assign partitions "
        "themselves. local: this endpoint, for the classic protocol; it writes committed offsets "
        "to the store, and must be the only such endpoint of the archive. "
        "relay=HOST:PORT[,HOST:PORT]: a live cluster, to which the endpoint relays the requests.  "
        "[default: none; with --live, that cluster]",
    )
    groups_properties: Path | None = option(
        "--groups-properties",
        type=FILE,
        help="Properties file of the client of the cluster of --groups relay, such as "
        "security.protocol and sasl.username. A changed file is used without a restart.",
    )
    group_retention: float | None = option(
        "--group-retention",
        metavar="DURATION",
        parse=_group_retention,
        help="Time for which --groups local keeps the committed offsets of a group without members "
        "and commits, such as 30d; at least 1d. They are deleted up to 7 h later. forever keeps "
        "them for ever.  [default: 7d]",
    )
    metrics_port: int | None = option(
        "--metrics-port",
        type=click.IntRange(1, 65535),
        help="Serve a status page, Prometheus metrics, /healthz and /readyz on this port.  "
        "[default: none]",
    )
    call: Invocation = CONFIGURATION


@kernel.command("serve")
def command(options: ServeOptions) -> int:
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
    tls, users, listen = options.tls_certificate, options.users, options.listen
    groups = options.groups or ("none" if options.live is None else RELAY + options.live)
    if tls is None and (options.tls_key is not None or options.tls_client_ca is not None):
        raise click.UsageError("--tls-key and --tls-client-ca need --tls-certificate")
    if not options.insecure:
        refuse_insecure(
            listen[0],
            has_tls=tls is not None,
            has_users=users is not None,
            has_client_ca=options.tls_client_ca is not None,
        )
    if options.advertise is None and listen[0] in {"0.0.0.0", "::"}:  # noqa: S104 -- refused, not bound
        raise click.UsageError(
            f"--listen {listen[0]} is no address that clients can connect to: add --advertise"
        )
    given = (options.live_properties, options.live_window, options.prefer or None)
    if options.live is None and any(each is not None for each in given):
        raise click.UsageError("--live-properties, --prefer and --live-window are for --live")
    if options.groups_properties is not None and not (options.groups or "").startswith(RELAY):
        raise click.UsageError("--groups-properties is for --groups relay=HOST:PORT")
    if options.group_retention is not None and groups != "local":
        raise click.UsageError("--group-retention is for --groups local")
    loaded = options.call.load(needs_log_dirs=False)
    with needs_extra("sidetier serve", RECORD_PACKAGES, "consumer"):
        from sidetier.cli.serve import serve  # noqa: PLC0415 -- `--help` must not load the libraries
        from sidetier.endpoint.catalog import CatalogSettings  # noqa: PLC0415
        from sidetier.endpoint.connection import ServerSettings  # noqa: PLC0415
        from sidetier.endpoint.groups.expiry import DEFAULT_RETENTION  # noqa: PLC0415
        from sidetier.endpoint.service import EndpointSettings  # noqa: PLC0415
        from sidetier.endpoint.tls import TlsFiles  # noqa: PLC0415

        require_packages(RECORD_PACKAGES)  # some are imported at the first request that needs them
        connections = options.max_connections
        settings = EndpointSettings(
            listen,
            options.advertise,
            options.memory,
            groups=_coordinator(groups, options),
            group_retention=options.group_retention or DEFAULT_RETENTION,
            tls=None if tls is None else TlsFiles(tls, options.tls_key, options.tls_client_ca),
            users=users,
            catalog=CatalogSettings(with_tail=options.with_tail),
            bytes_per_second=options.max_bytes_per_second,
            live=_live(options),
            server=ServerSettings(
                max_connections=connections,
                # Four fifths, rounded up: one host cannot keep all others out.
                max_connections_per_host=options.max_connections_per_host
                or -(-connections * 4 // 5),
                send=options.send_timeout,
            ),
        )
        return serve(loaded.config, settings, options.metrics_port)


def _live(options: ServeOptions) -> "LiveSettings | None":
    """Return the live cluster of --live. Raises ConfigurationError: a property is wrong."""
    from sidetier.endpoint.live.logs import LiveSettings  # noqa: PLC0415 -- as above

    if options.live is None:
        return None
    return LiveSettings(
        _live_cluster(options.live, options.live_properties, "--live-properties"),
        _LIVE_WINDOW if options.live_window is None else options.live_window,
        options.prefer,
    )


def _coordinator(groups: str, options: ServeOptions) -> "Literal['none', 'local'] | LiveCluster":
    """Return the mode of --groups, or the cluster that it names.

    Raises:
        ConfigurationError: A property is wrong.
    """
    if groups in {"none", "local"}:
        return cast('Literal["none", "local"]', groups)
    if options.groups is None:
        file, name = options.live_properties, "--live-properties"
    else:
        file, name = options.groups_properties, "--groups-properties"
    return _live_cluster(groups.removeprefix(RELAY), file, name)


def _live_cluster(servers: str, file: Path | None, option_name: str) -> "LiveCluster":
    from sidetier.config.properties_file import read_properties  # noqa: PLC0415 -- as above
    from sidetier.endpoint.live.client import LiveCluster  # noqa: PLC0415
    from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

    def load() -> ClientSettings:
        properties = {} if file is None else read_properties(file, option_name)
        return ClientSettings.from_properties({**properties, "bootstrap.servers": servers})

    load()  # before the archive is read
    return LiveCluster(load, file)
