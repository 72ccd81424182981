"""The objects of an archive. Each module has the value type, codec, read and write of one."""
