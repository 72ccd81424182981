"""Output of the steps of `sidetier hydrate`."""
