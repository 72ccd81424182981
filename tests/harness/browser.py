"""A headless Chromium, driven by Playwright."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from devtools.sandbox.chromium import chromium

_ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run a headless Chromium with an empty profile until the block ends."""
    found = chromium()
    environment: dict[str, str | float | bool] = dict(os.environ)
    if found.libraries is not None:
        environment["LD_LIBRARY_PATH"] = str(found.libraries)
    if found.font_config is not None:
        environment["FONTCONFIG_FILE"] = str(found.font_config)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.program, args=list(_ARGUMENTS), env=environment, timeout=120_000
        )
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """What a page reports on the console, the errors of its scripts, and the URLs it requests."""

    def __init__(self, page: Page) -> None:
        self.messages: list[str] = []
        self.urls: list[str] = []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.urls.append(request.url))
