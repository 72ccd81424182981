"""`sidetier explain`: where a record is now, and what it waits for."""

from typing import Final

import click

from sidetier.cli.arguments import PARTITION, bootstrap_option, checked_topic, sidecar_option
from sidetier.cli.explain.decide import decide
from sidetier.cli.explain.gather import Question, gather
from sidetier.cli.explain.view import ExplainResult
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.segments.offsets import Offset, TopicPartition

_OFFSET: Final = click.IntRange(0, 2**63 - 2)


@click.command(name="explain")
@click.argument("topic", callback=checked_topic)
@click.argument("partition", type=PARTITION)
@click.argument("offset", type=_OFFSET)
@sidecar_option()
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    topic: str,
    partition: int,
    offset: int,
    *,
    sidecar: str | None,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Show where a record is now, and what its upload waits for.

    Reads this host's log dirs and queries the running sidecar, the store and the cluster in
    parallel. It changes nothing. It reports a source that does not answer, and shows the others.
    For a record that is not stored it names the reason: the active segment, the high watermark, a
    failure, an earlier segment, another broker. It sends about twenty requests to the store.

    \b
    Example:
      sidetier explain orders 3 1234567 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 stored; 3 not stored (yet), but its bytes exist; 4 lost, or not written yet; 2
    neither the cluster nor the archive has the partition; 1 unknown, because a source does not
    answer.
    """  # noqa: D301 -- \b is click's marker and must be one character
    question = Question(
        invocation(context).load().config,
        TopicPartition(topic, partition),
        Offset(offset),
        sidecar,
        bootstrap,
    )
    facts = gather(question)
    answer = decide(facts)
    emit(ExplainResult(facts, answer), output)
    context.exit(answer.code)
