"""The tail: committed records above the archive end offsets, stored in packs of many partitions."""
