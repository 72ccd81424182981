"""The copy engine of mirrors and restores: source, target, workers, and the offset map."""
