"""Leadership in KRaft mode: the broker's metadata log as a hint, Metadata as confirmation."""
