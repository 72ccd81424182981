"""Command line as a program for spark-submit: `spark-submit submit.py export files ...`."""

from sidetier.cli.main import main

if __name__ == "__main__":
    main()
