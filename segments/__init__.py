"""The domain, pure: names, offsets, record batches, indexes, lineage, keys, the watermark."""
