"""A step of the demo: Kafka's console consumer reads the archive through `sidetier serve`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from devtools.demo.services import DemoFailedError
from devtools.demo.spark import what_is_missing
from devtools.sandbox.kafka_tools import console_consumer
from sidetier.brokers.processes import Command, ManagedProcess
from sidetier.segments.offsets import TopicPartition

_START_SECONDS: Final = 60.0
_READ_SECONDS: Final = 300.0
_WAIT_MS: Final = 30_000
"""The consumer ends when no record arrives for this time."""
_NEEDED: Final = ("pyarrow", "numpy", "cramjam")
_OFFSET: Final = "Offset:"


def why_no_serve() -> str | None:
    """Return why `sidetier serve` cannot run in this environment; None if it can."""
    return what_is_missing(*_NEEDED)


@contextmanager
def served(config: Path, directory: Path, *options: str) -> Iterator[str]:
    """Run `sidetier serve` over the archive until the block ends; yield its `bootstrap.servers`.

    Raises:
        ServerDiedError, ServerTimeoutError: It did not start; the text has the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "serve.log"
    line = [sys.executable, "-m", "sidetier.cli", "--config", str(config)]
    line += ["serve", "--listen", "127.0.0.1:0", *options]
    with ManagedProcess(Command("sidetier serve", line, log)) as process:
        process.start()
        process.wait_until(lambda: _address(log) is not None, _START_SECONDS)
        yield str(_address(log))


def _address(log: Path) -> str | None:
    """Return the address at which the endpoint listens; None before it does."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    events = map(json.loads, lines)
    listening = [event for event in events if event["event"] == "endpoint.listening"]
    return f"{listening[0]['host']}:{listening[0]['port']}" if listening else None


def consumer_options(bootstrap: str, tp: TopicPartition) -> tuple[list[str], list[str]]:
    """Return the console consumer's options: the server, and one partition from its start."""
    partition = ["--topic", tp.topic, "--partition", str(tp.partition), "--offset", "earliest"]
    return ["--bootstrap-server", bootstrap], partition


def consumed_offsets(bootstrap: str, tp: TopicPartition, records: int) -> list[int]:
    """Return the offsets of the records that the console consumer reads, up to `records`.

    Raises:
        DemoFailedError: The consumer failed, or did not end.
    """
    shown = "--formatter-property=print.offset=true", "--formatter-property=print.value=false"
    bounds = f"--max-messages={records}", f"--timeout-ms={_WAIT_MS}"
    server, partition = consumer_options(bootstrap, tp)
    line = [*console_consumer(), *server, *partition, *shown, *bounds]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=_READ_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        raise DemoFailedError(
            f"Kafka's console consumer ended with exit code {error.returncode}\n"
            f"{error.stdout[-2000:]}{error.stderr[-2000:]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DemoFailedError(
            f"Kafka's console consumer did not end within {_READ_SECONDS:.0f} s"
        ) from error
    lines = [text for text in done.stdout.splitlines() if text.startswith(_OFFSET)]
    return [int(text.removeprefix(_OFFSET)) for text in lines]
