"""Consumer groups of the endpoint (`sidetier serve --groups`)."""
