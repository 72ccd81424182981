"""What of the Helm chart is made from code: `make docs` writes it, a test holds it equal."""
