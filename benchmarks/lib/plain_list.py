"""Lists the keys below a prefix with obstore, page after page: what the server alone takes.

A separate script: `plain_list.py BUCKET ENDPOINT REGION PREFIX`, with the credentials in
BENCH_ACCESS_KEY and BENCH_SECRET_KEY. It prints the number of keys.
"""

import os
import sys

import obstore
from obstore.store import S3Store


def main() -> None:
    """List all keys, and drop them."""
    bucket, endpoint, region, prefix = sys.argv[1:]
    store = S3Store(
        bucket,
        endpoint=endpoint,
        region=region,
        access_key_id=os.environ["BENCH_ACCESS_KEY"],
        secret_access_key=os.environ["BENCH_SECRET_KEY"],
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )
    print(sum(len(page) for page in obstore.list(store, prefix, chunk_size=1000)))


if __name__ == "__main__":
    main()
