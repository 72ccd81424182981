"""The commands of `sidetier`, one module each."""
