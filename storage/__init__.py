"""The remote storage port and its adapters: S3, the local file system, fsspec."""
