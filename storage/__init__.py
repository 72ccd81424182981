"""The remote storage port and its adapters: S3, Google Cloud
Storage, Azure, HDFS, the local file system."""
