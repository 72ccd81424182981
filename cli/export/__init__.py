"""`sidetier export`: one command for each kind of output."""
