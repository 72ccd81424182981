"""Program that holds a Spark session for tests: one JVM for the session, in either environment.

It reads JSON lines from a Unix socket, `{"call": "module:function", "with": {...}}`, calls the
function with the session, and answers with `{"returned": ...}` or `{"raised": ..., "kind": ...}`.
Its arguments are the path of the socket and the session's settings as JSON.
"""

import importlib
import json
import logging
import os
import socket
import sys
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    address, settings = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        serve(spark, address)
    finally:
        spark.stop()


def serve(spark: SparkSession, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        lines = connection.makefile("r", encoding="utf-8")
        tell(connection, {"returned": {"version": spark.version, "pid": os.getpid()}})
        for line in lines:
            tell(connection, answer(spark, json.loads(line)))


def answer(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    module, _, function = request["call"].partition(":")
    try:
        return {
            "returned": getattr(importlib.import_module(module), function)(spark, **request["with"])
        }
    except Exception as error:  # noqa: BLE001 -- the test gets every error
        return {"raised": str(error), "kind": type(error).__name__}


def tell(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
