"""A server for the explorer's page, and a page that is watched."""

import contextlib
import shutil
import socket
import threading
import time
from dataclasses import dataclass, field

import uvicorn

from outrider.explorer.app import create_app, javascript_bundle
from outrider.explorer.live import Live

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def serving(model):
    """A server on a free port; gives its address and a function that ends it."""
    javascript_bundle()  # as a server that has been up for a second
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(Live(model)), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()

    def stop():
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()

    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", stop
    finally:
        stop()


@dataclass
class Watched:
    """A page, and what it said and asked for."""

    page: object
    base: str
    errors: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    may_fail: bool = False

    def open(self, query=""):
        self.page.goto(f"{self.base}/{query}")
        self.settle()

    def settle(self):
        """Wait until the view that is open has its answer."""
        self.page.wait_for_selector("[role=tabpanel]:not([hidden])[aria-busy=false]")

    def set(self, view, name, value):
        control = self.page.locator(f"#{view} [name={name}]")
        if control.evaluate("e => e.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(str(value))
        self.settle()

    def numbers(self, view):
        return dict(
            self.page.eval_on_selector_all(
                f"#{view} [data-number]", "boxes => boxes.map(b => [b.dataset.number, b.textContent])"
            )
        )

    def rows(self, view, plot):
        """The numbers of a plot, as its table gives them."""
        figure = self.page.locator(f"#{view} figure[data-plot={plot}]")
        figure.locator("details").evaluate("d => { d.open = true; }")
        figure.locator("td").first.wait_for()
        names, *lines = figure.locator("tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.textContent))")
        return [dict(zip(names, line, strict=True)) for line in lines]

    def alert(self):
        self.page.wait_for_selector("#alert:not([hidden])")
        return self.page.text_content("#alert")
