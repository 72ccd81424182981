"""What `sidetier export` is made of: a command for each kind of output."""
