"""The domain, pure: names, offsets, record batches, indexes, epoch history, keys, the watermark."""
