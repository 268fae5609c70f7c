"""The server's page in headless Chromium, against the stand-in server of page_server.py."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from page_visit import SHOTS, STORY, Visit, address, browser, visit  # noqa: F401 (fixtures)

# ruff: noqa: F811

pytestmark = [pytest.mark.slow, pytest.mark.peer("playwright")]


def test_chat(visit: Visit) -> None:
    page = visit.page
    visit.ask(STORY)
    assert visit.answers()[0].startswith("Once upon a time") and "enough." in visit.answers()[0]
    assert page.locator(".speed").inner_text() == (
        "18.3 tokens/s, 118 tokens · prompt 96.4 tokens/s, 31 tokens"
    )
    # Screen readers hear the whole answer once, not each token.
    assert page.locator("#status").inner_text().endswith("It was enough.")
    page.press("#text", "Shift+Enter")
    assert page.input_value("#text") == "\n"
    visit.ask("And then?")
    sent = visit.state()["bodies"][-1]
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["stream"] and sent["stream_options"] == {"include_usage": True}
    # Kept over a reload, with the list of conversations.
    page.reload()
    page.click("#open-chats")
    page.locator(".chat-open", has_text="little dragon").first.click()
    assert len(visit.answers()) == 2


def test_stop(visit: Visit) -> None:
    page = visit.page
    before = visit.state()["cancelled"]
    visit.send("/long")
    visit.until("(document.querySelector('.answer .body')?.innerText || '').length > 40")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send", state="visible")
    assert "stopped" in page.locator(".speed").inner_text()
    length = len(visit.answers()[0])
    page.wait_for_timeout(200)
    assert len(visit.answers()[0]) == length
    assert visit.state()["cancelled"] == before + 1
    visit.send("/long")
    page.wait_for_selector("#stop", state="visible")
    page.click("#stop")
    page.wait_for_selector("#send", state="visible")


def test_regenerate_and_edit(visit: Visit) -> None:
    page = visit.page
    visit.ask(STORY)
    page.click("button[aria-label='Regenerate']")
    page.wait_for_selector("#stop", state="visible")
    page.wait_for_selector("#send", state="visible")
    assert len(visit.answers()) == 1
    assert [m["content"] for m in visit.state()["bodies"][-1]["messages"]] == [STORY]
    page.click("button[aria-label='Edit and send again']")
    page.keyboard.type(" Please.")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop", state="visible")
    page.wait_for_selector("#send", state="visible")
    assert len(visit.answers()) == 1
    assert visit.state()["bodies"][-1]["messages"][-1]["content"] == STORY + " Please."


def test_errors_are_told(visit: Visit) -> None:
    page = visit.page
    visit.expected = ["Failed to load resource"]  # the browser's own word for a status of 4xx
    visit.send("/error")
    page.wait_for_selector(".problem")
    assert "5,000 tokens" in page.locator(".problem").inner_text()
    visit.shot("error")
    page.click("text=Try again")
    page.wait_for_selector(".speed:has-text('118 tokens')")
    assert page.locator(".problem").count() == 0
    visit.send("/break")
    page.wait_for_selector(".problem")
    assert page.locator(".problem").inner_text().startswith("The disk stopped.")
    assert len(visit.answers()) == 2 and visit.answers()[1].startswith("Once upon")
    page.click("#new-chat")
    visit.send("/key")
    page.wait_for_selector("text=Enter the key")
    page.click("text=Enter the key")
    page.keyboard.type("secret")
    page.click("#settings >> text=Done")
    page.click("text=Try again")
    page.wait_for_selector(".speed:has-text('118 tokens')")
    # Only for this tab.
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    assert page.evaluate("sessionStorage.getItem('powerinfer.key')") == "secret"


def test_a_server_that_is_gone(visit: Visit) -> None:
    visit.expected = ["Failed to load resource", "net::ERR"]
    visit.page.route("**/v1/chat/completions", lambda route: route.abort())
    visit.send(STORY)
    visit.page.wait_for_selector(".problem")
    assert "does not answer" in visit.page.locator(".problem").inner_text()


def test_settings_are_sent(visit: Visit) -> None:
    page = visit.page
    page.click("#open-settings")
    for name, value in {
        "temperature": "0.7",
        "top_k": "40",
        "seed": "0",
        "max_tokens": "9",
    }.items():
        page.fill(f"[name={name}]", value)
    page.fill("[name=min_p]", "7")  # not a probability, so it is not sent
    page.fill("[name=system]", "Be brief.")
    visit.shot("settings")
    page.keyboard.press("Escape")
    page.select_option("#model", "stories-relu.Q8_0")
    visit.ask(STORY)
    body = visit.state()["bodies"][-1]
    given = {k: v for k, v in body.items() if k not in ("messages", "stream", "stream_options")}
    assert given == {
        "model": "stories-relu.Q8_0",
        "temperature": 0.7,
        "top_k": 40,
        "seed": 0,
        "max_tokens": 9,
    }
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_a_model_that_continues_texts(visit: Visit) -> None:
    """It has no chat template: the page shows one text, and asks for its continuation."""
    page = visit.page
    page.select_option("#model", "base.Q8_0")
    assert "continue it" in page.locator(".greeting h2").inner_text()
    assert page.get_attribute("#text", "placeholder") == "Begin a text"
    begun, more = "There was a dragon", " who could *not* make fire.\nHe lived on a hill above a"
    more += " quiet village"
    visit.ask(begun)
    assert page.locator("#messages").inner_text().startswith(begun + more)
    body = visit.state()["bodies"][-1]
    assert "messages" not in body and (body["prompt"], body["max_tokens"]) == (begun, 256)
    visit.shot("text")
    visit.ask("")  # the model goes on
    assert visit.state()["bodies"][-1]["prompt"] == begun + more
    visit.ask("The end")
    text = begun + more + more + "\nThe end"
    assert visit.state()["bodies"][-1]["prompt"] == text
    page.click("button[aria-label='Regenerate']")
    page.wait_for_selector("#stop", state="visible")
    page.wait_for_selector("#send", state="visible")
    assert visit.state()["bodies"][-1]["prompt"] == text
    page.click("button[aria-label='Edit and send again']")
    page.keyboard.type(" is ")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop", state="visible")
    page.wait_for_selector("#send", state="visible")
    text += " is "
    assert visit.state()["bodies"][-1]["prompt"] == text
    word = page.locator(".w", has_text="village").last
    word.hover()
    page.wait_for_selector("#share-text:has-text('“village”')")
    visit.shot("text-long")
    # A conversation with another model is a chat again; the text stays one.
    page.select_option("#model", "stories-relu.Q8_0")
    assert page.get_attribute("#text", "placeholder") == "Write on, or press Enter for more"
    page.click("#new-chat")
    assert "Ask something" in page.locator(".greeting h2").inner_text()
    page.reload()
    page.click("#open-chats")
    page.locator(".chat-open", has_text=begun).first.click()
    assert page.locator("#messages").inner_text().startswith(text + more)


def test_view_and_replay(visit: Visit) -> None:
    page = visit.page
    page.wait_for_selector("#view", state="visible")
    assert page.locator("#share").inner_text() == "458,752"
    visit.ask(STORY)
    page.wait_for_selector("#share-text:has-text('on average')")
    average = page.locator("#share").inner_text()
    assert 5 < float(average.rstrip("%")) < 15
    still = pixels(page)
    word = page.locator(".w", has_text="blacksmith").first
    word.hover()
    page.wait_for_selector("#share-text:has-text('“blacksmith”')")
    assert pixels(page) != still, "the word's neurons are not shown"
    page.mouse.move(5, 5)
    page.wait_for_selector("#share-text:has-text('on average')")
    assert pixels(page) == still
    # The same by keyboard.
    page.locator(".answer .body").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("#share-text:has-text('“a”')")
    page.keyboard.press("Tab")
    page.wait_for_selector("#share-text:has-text('on average')")
    page.click("#replay")
    page.wait_for_selector("#share-text:has-text('this word')")
    page.wait_for_selector(".w.held")
    page.wait_for_selector("#share-text:has-text('on average')")
    # As a table.
    page.click("#open-table")
    assert page.locator("#table-body tbody tr").count() == 32
    first = page.locator("#table-body tr").nth(1).locator("td").all_inner_texts()
    assert abs(sum(float(t.rstrip("%")) for t in first[:3]) - 100) < 0.3
    visit.shot("table")


def test_view_of_experts(visit: Visit) -> None:
    """Each expert is a tile, in a continent of its tier and the row of its layer."""
    page = visit.page
    page.select_option("#model", "experts-128x.Q4_K_M")
    page.wait_for_selector("#share:has-text('6,144')")
    assert page.locator("#share-text").inner_text() == "experts wait for a word"
    assert page.locator(".tier:has-text('of the experts')").count() == 2
    label = page.get_attribute("#map", "aria-label")
    assert label.startswith("Map of 6,144 experts in 48 layers. RAM: 6.5 GB, 40.0%; disk: 9.8 GB")
    visit.ask(STORY)
    page.wait_for_selector("#share-text:has-text('on average')")
    visit.shot("experts")
    page.click("#open-table")
    assert page.locator("#table-title").inner_text() == "Where the experts are"
    assert page.locator("#table-body thead th").all_inner_texts()[1:] == ["RAM", "disk", "Chosen"]
    assert "how many were chosen in a step" in page.locator("#table-text").inner_text()


def test_view_of_a_short_answer(visit: Visit) -> None:
    """Its only step comes when all words are there."""
    page = visit.page
    visit.send("/short")
    page.wait_for_selector("#share-text:has-text('on average')")
    page.click("#open-table")
    fired = page.locator("#table-body tr td:last-child").all_inner_texts()
    assert len(fired) == 32 and all(0 < float(t.rstrip("%")) < 40 for t in fired)


def test_view_of_an_answer_at_once(visit: Visit) -> None:
    """The first question may come before the stream stands; its answer is seen all the same."""
    visit.page.select_option("#model", "stories-relu.Q8_0")
    visit.page.wait_for_selector("#share:has-text('11,008')")
    visit.send("/quick")
    visit.page.wait_for_selector("#share-text:has-text('on average')")


def pixels(page) -> str:
    """The map, once it no longer changes."""
    before = ""
    for _ in range(40):
        now = page.evaluate("document.getElementById('map').toDataURL()")
        if now == before:
            return now
        before = now
        page.wait_for_timeout(250)
    raise AssertionError("the map does not come to rest")


def test_the_stream_lives_only_while_watched(visit: Visit) -> None:
    page = visit.page
    model = "bamboo-7b.Q4_0"

    def watchers(n: int) -> None:
        for _ in range(50):
            if visit.state()["watchers"][model] == n:
                return
            page.wait_for_timeout(100)
        raise AssertionError(visit.state()["watchers"])

    watchers(1)
    page.click("#toggle-view")
    assert page.locator("#view").is_hidden()
    watchers(0)
    page.click("#toggle-view")
    watchers(1)
    page.select_option("#model", "stories-relu.Q8_0")
    watchers(0)


def test_tiers_move(visit: Visit) -> None:
    page = visit.page
    page.wait_for_selector("#view", state="visible")
    before = pixels(page)
    with urllib.request.urlopen(
        urllib.request.Request(visit.address + "test/move", method="POST")
    ) as answer:
        assert answer.status == 200
    visit.until(f"document.getElementById('map').toDataURL() !== {json.dumps(before)}")


def test_picture_and_recording(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    page.wait_for_selector("#view", state="visible")
    visit.ask(STORY)
    page.locator(".w", has_text="dragon").first.focus()
    page.wait_for_selector("#share-text:has-text('“dragon”')")
    with page.expect_download() as download:
        page.evaluate("document.getElementById('save-picture').click()")
    assert download.value.suggested_filename == "bamboo-7b.Q4_0-neurons.png"
    SHOTS.mkdir(parents=True, exist_ok=True)
    download.value.save_as(SHOTS / "saved.png")
    data = (SHOTS / "saved.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert [int.from_bytes(data[i : i + 4], "big") for i in (16, 20)] == [1920, 1080]
    with page.expect_download(timeout=20000) as download:
        page.click("#save-video")
    assert download.value.suggested_filename == "bamboo-7b.Q4_0-neurons.webm"
    download.value.save_as(tmp_path / "four.webm")
    assert (tmp_path / "four.webm").read_bytes()[:4] == b"\x1a\x45\xdf\xa3"


def test_layout(visit: Visit) -> None:
    """Every neuron has a cell in its continent and layer, also after tiers moved."""
    assert not visit.check("layoutFaults")


def test_frames(visit: Visit) -> None:
    """Frames are found however the bytes are cut; memory is bounded."""
    result = visit.check("frames")
    assert set(result["seen"]) == {"7,0,0.25,1,2,3,1,2 7,2,0.25,1,2,3,4,2 8,0,0.25,1,2,3,9,9"}
    assert result["found"] == [2], "the step of token 2 stands for token 1, too"
    assert result["both"] == [5, 2]
    assert result["bytes"] <= 7 and result["left"] == 0


def test_still_where_motion_is_not_wanted(browser, address) -> None:
    visit = Visit(browser, address, reduced_motion="reduce")
    visit.page.wait_for_selector("#view", state="visible")
    before = pixels(visit.page)
    visit.ask(STORY)
    visit.page.wait_for_timeout(300)
    after = pixels(visit.page)
    assert after != before
    visit.page.wait_for_timeout(400)
    assert pixels(visit.page) == after
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_shape_and_names(browser, address, width: int, scheme: str) -> None:
    height, scale = (860, 1) if width > 400 else (760, 2)
    visit = Visit(browser, address, width, height, color_scheme=scheme, device_scale_factor=scale)
    page = visit.page
    page.wait_for_selector("#view", state="visible")
    name = scheme if width > 400 else f"phone-{scheme}"
    visit.shot(f"{name}-start")
    assert not visit.check("pale")
    visit.ask("/markdown" if width < 400 else STORY)
    page.wait_for_timeout(900)
    visit.shot(name)
    page.locator(".w").nth(3).focus()
    page.wait_for_timeout(600)
    visit.shot(f"{name}-word")
    for script in ("document.documentElement", "document.getElementById('scroll')"):
        assert page.evaluate(f"{script}.scrollWidth <= {script}.clientWidth"), script
    assert not visit.check("nameless")
    assert not visit.check("pale")
    page.click("#open-chats")
    visit.shot(f"{name}-chats")
    assert not visit.check("nameless")
    dialog = "document.getElementById('chats')"
    assert page.evaluate(f"{dialog}.scrollWidth <= {dialog}.clientWidth")
    visit.close()


def test_everything_is_reached_by_keyboard(visit: Visit) -> None:
    page = visit.page
    visit.ask(STORY)
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.ariaLabel || ''")
        )
        outline = page.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
            " || document.activeElement.matches('#text, body')"
        )
        assert outline, page.evaluate("document.activeElement.outerHTML.slice(0, 80)")
    wanted = {"model", "new-chat", "open-chats", "toggle-view", "toggle-theme", "open-settings"}
    wanted |= {
        "replay",
        "save-picture",
        "open-table",
        "fold-view",
        "scroll",
        "text",
        "send",
        "Regenerate",
    }
    wanted |= {"Copy the answer", "Edit and send again"}
    assert wanted <= reached


def test_conversations(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    visit.ask(STORY)
    page.click("#new-chat")
    assert visit.answers() == []
    visit.ask("Why is the sky blue?")
    page.click("#open-chats")
    assert page.locator(".chat-title").all_inner_texts() == ["Why is the sky blue?", STORY]
    with page.expect_download() as download:
        page.click(f"button[aria-label='Export “{STORY}” as JSON']")
    download.value.save_as(tmp_path / "chat.json")
    kept = json.loads((tmp_path / "chat.json").read_text())
    assert kept["title"] == STORY and len(kept["messages"]) == 2
    with page.expect_download() as download:
        page.click(f"button[aria-label='Export “{STORY}” as Markdown']")
    download.value.save_as(tmp_path / "chat.md")
    assert (tmp_path / "chat.md").read_text().startswith(f"# {STORY}\n\n**You**\n\n")
    page.click(f"button[aria-label='Delete “{STORY}”']")
    assert page.locator(".chat-title").all_inner_texts() == ["Why is the sky blue?"]
    page.click("button[aria-label='Delete “Why is the sky blue?”']")
    page.keyboard.press("Escape")
    assert visit.answers() == []
    assert page.evaluate("Object.keys(localStorage)") == ["powerinfer.settings"]


def test_theme(visit: Visit) -> None:
    page = visit.page
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#toggle-theme")
    assert page.evaluate(ground) != dark
    page.reload()
    assert page.evaluate(ground) != dark, "the choice is kept"
    page.click("#open-settings")
    page.check("[name=theme][value=auto]")
    assert page.evaluate(ground) == dark


def test_time_of_a_frame(visit: Visit, capsys: pytest.CaptureFixture) -> None:
    """Prints what a frame of 32 x 14,336 neurons costs; the machine may be busy, so no limit."""
    times = visit.check("frameTimes")
    with capsys.disabled():
        print("\npage:", ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items()))
    assert all(ms > 0 for ms in times.values())
