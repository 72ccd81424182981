from pyspark.errors import AnalysisException

from sidetier.pipeline.export.errors import NotCommittedError, RefusedRowsError
from sidetier.pipeline.export.sinks.tables.gateway import not_committed

JAVA = """An error occurred while calling o92.save.
: org.apache.hudi.exception.HoodieUpsertException: Failed to upsert for commit time 20261121
\tat org.apache.hudi.table.action.commit.BaseWriteHelper.write(BaseWriteHelper.java:83)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/sidetier/values.py", line 52, in __call__
    raise misfit
sidetier.pipeline.export.errors.MisfitError: orders-3 offset 8: no number

Driver stacktrace:
\t... 32 more
"""


def test_error_contains_the_cause_without_the_java_stack_trace() -> None:
    error = not_committed(RuntimeError(JAVA), "lake.db.t")
    assert type(error) is NotCommittedError
    assert error.retry
    text = str(error)
    assert text.startswith("lake.db.t: the write failed; no record of this commit is visible.")
    assert "MisfitError: orders-3 offset 8: no number" in text
    assert "BaseWriteHelper.java" not in text
    assert "values.py" not in text
    assert "stacktrace" not in text


def test_long_message_keeps_its_end() -> None:
    text = "\n".join(f"cause {number}" for number in range(2000))
    told = str(not_committed(RuntimeError(text), "t"))
    assert told.endswith("cause 1999")
    assert len(told) < 2200


def test_rows_that_do_not_fit_are_not_retried() -> None:
    error = not_committed(AnalysisException("no column value"), "t")
    assert isinstance(error, RefusedRowsError)
    assert not error.retry
    given_up = not_committed(AnalysisException("cancelled"), "t", "it took more than 3 s")
    assert not isinstance(given_up, RefusedRowsError)
