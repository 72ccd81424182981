"""The uncached parts of a file are found exactly and with few requests to the kernel."""

from hypothesis import given
from hypothesis import strategies as st

from sidetier.uploader.sending.reading import PAGE_BYTES, cold_parts, pages_of

PAGES = 256


@given(
    hot=st.sets(st.integers(0, PAGES - 1)), first=st.integers(0, PAGES), end=st.integers(0, PAGES)
)
def test_cold_parts_are_exactly_the_uncached_pages(hot: set[int], first: int, end: int) -> None:
    asked = range(min(first, end), max(first, end))
    parts = list(cold_parts(lambda _, pages: len(hot.intersection(pages)), 0, asked))
    assert [page for part in parts for page in part] == [page for page in asked if page not in hot]


@given(border=st.integers(0, PAGES))
def test_border_is_found_by_bisection(border: int) -> None:
    questions: list[range] = []

    def count(_: int, pages: range) -> int:
        questions.append(pages)
        return len(range(max(pages.start, border), max(pages.stop, border)))

    list(cold_parts(count, 0, range(PAGES)))
    assert len(questions) <= 1 + 2 * (PAGES.bit_length() - 1)


@given(position=st.integers(0, 1 << 40), length=st.integers(0, 1 << 30))
def test_pages_of_a_range_contain_exactly_its_bytes(position: int, length: int) -> None:
    pages = pages_of(position, length)
    assert bool(pages) == bool(length)
    if pages:
        assert pages.start * PAGE_BYTES <= position < (pages.start + 1) * PAGE_BYTES
        assert (pages.stop - 1) * PAGE_BYTES < position + length <= pages.stop * PAGE_BYTES
