"""What `sidetier mirror` and `sidetier restore` have in common."""
