"""What the steps of `sidetier hydrate` show."""
