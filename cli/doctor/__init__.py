"""`sidetier doctor`: gather facts, check them for what could cost records, list the findings."""
