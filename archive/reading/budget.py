"""The memory budget over all partitions. It only counts; its owner holds a lock."""


class Budget:
    """Counts bytes that are held or being fetched, out of `total`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.peak = 0
        """The most bytes that were ever held."""

    def share(self, partitions: int) -> int:
        """Return the bytes that each of `partitions` partitions may hold."""
        return self.total // max(partitions, 1)

    @property
    def is_ample(self) -> bool:
        """Whether at most half of the budget is held."""
        return self.used <= self.total // 2

    def fits(self, size: int) -> bool:
        """Return whether `size` more bytes may be held."""
        return self.used + size <= self.total

    def take(self, size: int) -> None:
        """Count `size` more bytes, even beyond the budget."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def give_back(self, size: int) -> None:
        """Count `size` fewer bytes."""
        self.used -= size
