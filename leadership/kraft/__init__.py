"""Leadership in KRaft mode: the broker's own metadata log as watch, Metadata as confirmation."""
