"""The command line that the archives of the demo's tests are made with."""

from tests.unit.cli.conftest import cli, no_settings_around

__all__ = ["cli", "no_settings_around"]
