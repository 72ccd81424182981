"""Planning of reads: from options and the archive's listing to splits. Independent of Spark."""
