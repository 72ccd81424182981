"""`sidetier serve`: serve the archive to Kafka clients."""

import ipaddress
from pathlib import Path
from typing import Final

import click

from sidetier.cli.extras import from_extra
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.config.units import parse_size

Address = tuple[str, int]
RELAY: Final = "relay="
"""Prefix of the value of --groups that names a live cluster."""
_EXTRA: Final = ("cramjam", "numpy", "pyarrow")
_LEAST_MEMORY: Final = 16 << 20
_MOST_PORT: Final = 65535


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


def _memory(_context: click.Context, _option: click.Parameter, given: str) -> int:
    try:
        size = parse_size(given)
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is no size: {error}") from None
    if size < _LEAST_MEMORY:
        raise click.BadParameter(f"at least {_LEAST_MEMORY >> 20} MiB are needed")
    return size


def _groups(_context: click.Context, _option: click.Parameter, given: str) -> str:
    if given in {"none", "local"} or (given.startswith(RELAY) and given != RELAY):
        return given
    raise click.BadParameter(f"{given!r} is not none, local or relay=HOST:PORT[,HOST:PORT]")


@click.command(name="serve")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    callback=_address,
    help="Address to listen at.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    callback=_address,
    help="Address that clients are told to connect to.  [default: that of --listen]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    default="256MiB",
    show_default=True,
    callback=_memory,
    help="Memory for segments that are fetched ahead of the clients, shared by all clients. Not "
    "used for file:// stores: their files are sent from the page cache.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Most open connections; further ones are closed at once.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow a --listen address that other hosts can reach, although every client that connects "
    "can read all topics, and records are sent unencrypted.",
)
@click.option(
    "--groups",
    metavar="none|local|relay=BOOTSTRAP",
    default="none",
    show_default=True,
    callback=_groups,
    help="Coordinator of consumer groups. none: there is none, and clients assign partitions "
    "themselves. local: this endpoint, for the classic protocol; it writes committed offsets to "
    "the store, and must be the only endpoint of the archive that does. "
    "relay=HOST:PORT[,HOST:PORT]: a live cluster, to which the endpoint passes the requests on.",
)
@click.option(
    "--groups-properties",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Properties file of the client of the cluster of --groups relay, such as "
    "security.protocol and sasl.username.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Serve Prometheus metrics on this port.  [default: none]",
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
    insecure: bool,
    groups: str,
    groups_properties: Path | None,
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
    if not insecure and not is_loopback(listen[0]):
        raise click.UsageError(
            f"--listen {listen[0]}: other hosts could read every topic, without a login and "
            "unencrypted; listen at 127.0.0.1, or add --insecure if the network is trusted"
        )
    if advertise is None and listen[0] in {"0.0.0.0", "::"}:  # noqa: S104 -- refused, not bound
        raise click.UsageError(
            f"--listen {listen[0]} is no address that clients can connect to: add --advertise"
        )
    if groups_properties is not None and not groups.startswith(RELAY):
        raise click.UsageError("--groups-properties is for --groups relay=HOST:PORT")
    loaded = invocation(context).load()

    def run() -> int:
        from sidetier.cli.serve import serve  # noqa: PLC0415 -- `--help` must not load the libraries

        return serve(
            loaded,
            listen,
            advertise,
            memory,
            max_connections,
            metrics_port,
            groups=groups,
            groups_properties=groups_properties,
        )

    context.exit(from_extra(run, "sidetier serve", _EXTRA, "consumer"))
