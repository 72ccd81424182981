"""What is to be read: from an archive's listing, its indexes and the options to splits. No Spark."""
