"""The domain model, pure: names, offsets, record batches, indexes, epoch history, and object
keys.
"""
