"""Entry point of the `sidetier` command and of `python -m sidetier.cli`."""

import signal


def main() -> None:
    """Load the command line and run it.

    Ctrl-C while modules are loaded ends the process at once, without a traceback. No work has begun
    then, so nothing needs to be cleaned up.
    """
    inherited = signal.getsignal(signal.SIGINT)  # SIG_IGN in a shell script's background job
    if inherited is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sidetier.cli.main import main as run_command_line  # noqa: PLC0415 -- import only after SIGINT has its default action

    signal.signal(signal.SIGINT, inherited)
    run_command_line()


if __name__ == "__main__":
    main()
