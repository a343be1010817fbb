"""A browser, a server and watched pages for the tests of the explorer's page."""

import os

import pytest
from page_helpers import CHROMIUM, Watched, serving


@pytest.fixture(scope="module")
def address():
    with serving("toy") as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def desk(browser):
    """What most pages share: a wide screen, and what was fetched once."""
    return browser.new_context(viewport={"width": 1280, "height": 800})


@pytest.fixture
def watch(browser, desk, address):
    """Pages that may say nothing on the console and ask nothing of another machine."""
    pages = []

    def make(base=address, **options):
        page = (browser.new_context(**options) if options else desk).new_page()
        page.set_default_timeout(60_000)
        watched = Watched(page, base)
        page.on("console", lambda m: watched.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("request", lambda request: watched.asked.append(request.url))
        pages.append(watched)
        return watched

    yield make
    for watched in pages:
        watched.page.close()
        assert watched.asked
        assert all(url.startswith((watched.base, "data:", "blob:")) for url in watched.asked)
        if not watched.may_fail:
            assert watched.errors == []
