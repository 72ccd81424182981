"""Entry of the `sidetier` command, and of `python -m sidetier.cli`."""

import signal


def main() -> None:
    """Load the command line and run it.

    Ctrl-C while modules load ends the process at once, without a traceback: nothing has begun.
    """
    inherited = signal.getsignal(signal.SIGINT)  # ignored in the background of a shell script
    if inherited is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sidetier.cli.main import main as run_command_line  # noqa: PLC0415 -- see above

    signal.signal(signal.SIGINT, inherited)
    run_command_line()


if __name__ == "__main__":
    main()
