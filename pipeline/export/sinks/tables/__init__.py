"""Export to tables whose format has commits: each commit holds the next offsets of the export."""
