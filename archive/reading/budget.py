"""The one bound of memory over all partitions: pure counting, under its owner's lock."""


class Budget:
    """Bytes that are held, or on their way, of `total` that may be."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.peak = 0
        """The most that was ever held."""

    def share(self, partitions: int) -> int:
        """What each of so many partitions may hold."""
        return self.total // max(partitions, 1)

    @property
    def is_ample(self) -> bool:
        """Whether no more than half of it is held."""
        return self.used <= self.total // 2

    def fits(self, size: int) -> bool:
        """Whether so many bytes more may be held."""
        return self.used + size <= self.total

    def take(self, size: int) -> None:
        """Hold so many bytes more; whoever must, may go beyond the bound."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def give_back(self, size: int) -> None:
        """Hold so many bytes less."""
        self.used -= size
