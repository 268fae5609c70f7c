"""The server's page in headless Chromium: what tests of it share."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SHOTS = ROOT / "build" / "page"
STORY = "Tell me a story about a little dragon."


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("page_server.py")), "--delay", "0.01"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline().strip()
    assert line, "the stand-in server did not start"
    yield line
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    if not CHROMIUM:
        pytest.skip("no Chromium: the page is tested where Debian's package chromium is installed")
    with sync_playwright() as playwright:
        # The page is ours, and CI runs as root, where Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page with what went wrong on it."""

    def __init__(self, browser, address: str, width: int = 1280, height: int = 860, **options):
        self.address = address
        options = {"device_scale_factor": 1, "color_scheme": "dark", **options}
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30000)  # the machine may be busy
        self.wrong: list[str] = []
        self.expected: list[str] = []
        self.page.on("console", self.console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"{error}\n{error.stack}"))
        self.page.on("request", self.request)
        self.page.add_init_script(
            "window.violations = []; document.addEventListener('securitypolicyviolation',"
            " (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`))"
        )
        self.page.goto(address)
        self.page.wait_for_selector("#model option", state="attached")

    def console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def request(self, request) -> None:
        if not request.url.startswith((self.address, "blob:" + self.address)):
            self.wrong.append("request to " + request.url)

    def send(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")

    def ask(self, text: str) -> None:
        self.send(text)
        self.page.wait_for_selector("#stop", state="visible")
        self.page.wait_for_selector("#send", state="visible")

    def answers(self) -> list[str]:
        return self.page.locator(".answer .body").all_inner_texts()

    def until(self, script: str) -> None:
        """Waits for an expression; the policy forbids Playwright's own way, which is eval."""
        for _ in range(100):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(script)

    def check(self, name: str, argument: object = None):
        """A function of page_checks.js."""
        script = f"async (a) => (await import('/test/checks.js')).{name}(a)"
        return self.page.evaluate(script, argument)

    def state(self) -> dict:
        with urllib.request.urlopen(self.address + "test/state") as answer:
            return json.load(answer)

    def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")

    def close(self) -> None:
        violations = self.page.evaluate("window.violations")
        self.context.close()
        wrong = [w for w in self.wrong if not any(e in w for e in self.expected)]
        assert not wrong + violations


@pytest.fixture
def visit(browser, address) -> Iterator[Visit]:
    visit = Visit(browser, address)
    yield visit
    visit.close()
