"""What `sidetier restore` is made of."""
