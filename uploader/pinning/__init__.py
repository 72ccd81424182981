"""Files held open until they are stored, within bounds."""
