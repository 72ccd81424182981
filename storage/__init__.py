"""Remote storage port and its adapters: object stores, HDFS, the local file system."""
