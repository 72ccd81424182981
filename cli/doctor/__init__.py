"""What could cost records, seen from here: facts, small pure checks over them, one list."""
