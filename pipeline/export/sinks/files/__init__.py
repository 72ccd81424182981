"""Export to files. A manifest beside them holds the state, because files have no commits."""
