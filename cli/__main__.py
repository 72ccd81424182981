"""`python -m sidetier.cli`, where the installed command is not on PATH."""

from sidetier.cli.main import main

if __name__ == "__main__":
    main()
