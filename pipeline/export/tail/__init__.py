"""The tail of a log: records that only the brokers have, not the archive yet, and how to
read them.
"""
