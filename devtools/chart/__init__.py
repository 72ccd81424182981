"""Files of the Helm chart that `make docs` generates; a test checks that they are current."""
