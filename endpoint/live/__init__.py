"""The live cluster behind `sidetier serve --live`: its topics, and the records of its brokers."""
