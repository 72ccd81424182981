"""The domain, pure: names, offsets, record batches, indexes, lineage, object keys, the watermark."""
