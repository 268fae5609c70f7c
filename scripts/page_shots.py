#!/usr/bin/env python3
"""Pictures of the server's page: light and dark, desktop and phone, sparse, dense, without chats.

python scripts/page_shots.py OUT [--only PART]

Against the stand-in server of the tests, so that no model is needed. Needs PyPI's playwright and
Debian's chromium. Look at each after a change of the page: tests see no ugliness.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

SERVER = Path(__file__).resolve().parents[1] / "tests" / "python" / "page_server.py"
STORY = "Tell me a story about a little dragon."
SIZES = {"desktop": (1280, 860, 1), "phone": (375, 760, 2)}
DENSE, BASE, EXPERTS = "dense-1b.Q4_K_M", "base.Q8_0", "experts-128x.Q4_K_M"


class Camera:
    """A page, and where its pictures go."""

    def __init__(self, page, folder: Path, prefix: str):
        self.page, self._folder, self._prefix = page, folder, prefix

    def shot(self, name: str) -> None:
        """Writes a picture of what is on the screen."""
        self.page.wait_for_timeout(700)  # flashes fade
        self.page.screenshot(path=self._folder / f"{self._prefix}-{name}.png")

    def ask(self, text: str) -> None:
        """Sends a message and waits for the end of the answer."""
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")
        self.page.wait_for_selector("#stop", state="visible")
        self.page.wait_for_selector("#send", state="visible")

    def fresh(self, model: str | None = None) -> None:
        """Begins a conversation, with another model."""
        if model is not None:
            self.page.select_option("#model", model)
        self.page.click("#new-chat")

    def click(self, label: str) -> None:
        """Clicks the last button with this name."""
        self.page.locator(f"button[aria-label='{label}']").last.click()


def start(camera: Camera) -> None:
    camera.shot("start")


def story(camera: Camera) -> None:
    camera.ask(STORY)
    camera.shot("story")
    camera.click("Regenerate")
    camera.page.wait_for_selector("#stop", state="visible")
    camera.page.wait_for_timeout(500)
    camera.shot("running")
    camera.page.wait_for_selector("#send", state="visible")
    camera.page.locator("button[aria-label='Edit and send again']").first.click()
    camera.shot("editing")
    camera.page.keyboard.type(" Please, with a knight.")
    camera.page.keyboard.press("Enter")
    camera.page.wait_for_selector("#send", state="visible")
    camera.click("Regenerate")
    camera.page.wait_for_selector("#stop", state="visible")
    camera.page.wait_for_selector("#send", state="visible")
    camera.page.locator(".message.user").first.scroll_into_view_if_needed()
    camera.shot("versions")


def text(camera: Camera) -> None:
    for name in ("markdown", "code", "math"):
        camera.fresh()
        camera.page.evaluate("document.getElementById('fold-view').click()")
        camera.ask(f"/{name}")
        camera.page.evaluate("document.getElementById('scroll').scrollTop = 0")
        camera.shot(name)
        camera.page.evaluate("document.getElementById('scroll').scrollTop = 1e6")
        camera.shot(f"{name}-end")
        camera.page.evaluate("document.getElementById('fold-view').click()")


def thoughts(camera: Camera) -> None:
    camera.fresh()
    camera.ask("/think")
    camera.shot("thoughts")
    camera.page.locator(".thoughts summary").last.click()
    camera.shot("thoughts-open")
    camera.fresh()
    camera.ask("/tools")
    camera.shot("tools")


def models(camera: Camera) -> None:
    camera.page.click("#fold-view")
    camera.fresh()
    camera.ask(STORY)
    camera.shot("folded")
    camera.page.click("#fold-view")
    camera.fresh(DENSE)
    camera.shot("dense-start")
    camera.ask(STORY)
    camera.shot("dense")
    camera.fresh(BASE)
    camera.shot("base-start")
    camera.ask("There was a dragon")
    camera.click("Regenerate")
    camera.page.wait_for_selector("#stop", state="visible")
    camera.page.wait_for_selector("#send", state="visible")
    camera.shot("base")
    camera.fresh(EXPERTS)
    camera.ask(STORY)
    camera.shot("experts")


def dialogs(camera: Camera) -> None:
    camera.page.click("#open-chats")
    camera.shot("chats")
    files = [{"name": "bad.json", "mimeType": "application/json", "buffer": b'{"messages": [{}]}'}]
    camera.page.set_input_files("#chats-file", files)
    camera.shot("chats-bad")
    camera.page.keyboard.press("Escape")
    camera.page.click("#open-settings")
    camera.shot("settings")
    camera.page.keyboard.press("Escape")
    camera.page.click("#open-table")
    camera.shot("table")
    camera.page.keyboard.press("Escape")
    camera.fresh()
    camera.page.fill("#text", "/key")
    camera.page.press("#text", "Enter")
    camera.page.wait_for_selector(".problem")
    camera.shot("error")


PARTS = (start, story, text, thoughts, models, dialogs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="one part")
    parser.add_argument("--size", choices=list(SIZES), help="one size")
    parser.add_argument("--scheme", choices=["light", "dark"], help="one scheme of colours")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        parser.error("there is no chromium (Debian's package of this name)")
    options.out.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, str(SERVER), "--delay", "0.01"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                )
                for size in [options.size] if options.size else SIZES:
                    for scheme in [options.scheme] if options.scheme else ("light", "dark"):
                        width, height, scale = SIZES[size]
                        context = browser.new_context(
                            viewport={"width": width, "height": height},
                            device_scale_factor=scale,
                            color_scheme=scheme,
                        )
                        page = context.new_page()
                        page.goto(address)
                        page.wait_for_selector("#view", state="visible")
                        camera = Camera(page, options.out, f"{size}-{scheme}")
                        for part in PARTS:
                            if options.only in (None, part.__name__):
                                part(camera)
                        context.close()
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
