"""Taking over a partition that Pinterest's uploader has filled."""
