"""What is to be read: from a listing, its indexes and the options to splits. No Spark."""
