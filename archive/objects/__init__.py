"""The objects of an archive, a module each: value type, codec, read and write."""
