"""`sidetier gc`: retention on the store, orphans and unfinished uploads."""
