"""Conversations of the page: versions, files, thoughts, calls, and the folded view."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_visit import STORY, Visit, address, browser, visit  # noqa: F401 (fixtures)

# ruff: noqa: F811

pytestmark = [pytest.mark.slow, pytest.mark.peer("playwright")]

NEXT, BEFORE = "Next version of the {}", "Previous version of the {}"


def press(visit: Visit, label: str, which: int = -1) -> None:
    visit.page.locator(f"button[aria-label='{label}']").nth(which).click()


def again(visit: Visit, label: str, which: int = -1) -> None:
    """Presses a button that brings an answer, and waits for it."""
    press(visit, label, which)
    visit.page.wait_for_selector("#stop", state="visible")
    visit.page.wait_for_selector("#send", state="visible")


def edit(visit: Visit, which: int, text: str) -> None:
    press(visit, "Edit and send again", which)
    visit.page.keyboard.press("Control+A")
    visit.page.keyboard.type(text)
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector("#stop", state="visible")
    visit.page.wait_for_selector("#send", state="visible")


def mine(visit: Visit) -> list[str]:
    return visit.page.locator(".message.user .body").all_inner_texts()


def shown_versions(visit: Visit) -> list[str]:
    return visit.page.locator(".versions span").all_inner_texts()


def test_versions_of_messages(visit: Visit) -> None:
    page = visit.page
    visit.ask("one")
    visit.ask("two")
    edit(visit, 0, "one, but other")
    assert mine(visit) == ["one, but other"] and shown_versions(visit) == ["2/2"]
    assert [m["content"] for m in visit.state()["bodies"][-1]["messages"]] == ["one, but other"]
    # Back to the first: with all that followed it.
    press(visit, BEFORE.format("message"))
    assert mine(visit) == ["one", "two"] and len(visit.answers()) == 2
    assert page.evaluate("document.activeElement.ariaLabel") == BEFORE.format("message")
    assert page.locator("#status").inner_text() == "Version 1 of 2"
    page.keyboard.press("Enter")  # without an end: before the first is the last
    assert mine(visit) == ["one, but other"]
    page.keyboard.press("Enter")
    visit.ask("three")
    again(visit, "Regenerate", 1)
    assert mine(visit) == ["one", "two"] and shown_versions(visit) == ["1/2", "2/2"]
    group = page.locator(".answer .versions")
    assert group.get_attribute("aria-label") == "Version 2 of 2 of the answer"
    press(visit, NEXT.format("answer"))
    assert mine(visit) == ["one", "two", "three"] and shown_versions(visit) == ["1/2", "1/2"]
    visit.ask("four")
    sent = visit.state()["bodies"][-1]["messages"]
    assert [m["content"] for m in sent if m["role"] == "user"] == ["one", "two", "three", "four"]
    assert all(set(m) == {"role", "content"} for m in sent), "versions are not sent"
    # Kept over a reload, whichever was shown.
    page.reload()
    page.click("#open-chats")
    page.locator(".chat-open").first.click()
    assert mine(visit) == ["one", "two", "three", "four"]
    press(visit, BEFORE.format("message"))
    assert mine(visit) == ["one, but other"]


def test_an_answer_again_that_fails(visit: Visit) -> None:
    """The old one stays."""
    page = visit.page
    visit.ask(STORY)
    before = visit.answers()
    visit.expected = ["Failed to load resource", "net::ERR"]
    page.route("**/v1/chat/completions", lambda route: route.abort())
    press(visit, "Regenerate")
    page.wait_for_selector(".problem")
    assert visit.answers() == before and shown_versions(visit) == []
    page.unroute("**/v1/chat/completions")
    page.click("text=Try again")
    page.wait_for_selector(".versions")
    assert shown_versions(visit) == ["2/2"] and page.locator(".problem").count() == 0
    # Stopped after some words: a version of its own. Another conversation meanwhile stays whole.
    visit.ask("And then?")
    visit.send("/long")
    page.wait_for_selector("#stop", state="visible")
    page.click("#new-chat")
    page.wait_for_selector("#send", state="visible")
    visit.ask("Why?")
    page.click("#open-chats")
    page.locator(".chat-open", has_text="dragon").first.click()
    assert len(mine(visit)) == 3
    press(visit, "Regenerate", 0)
    page.wait_for_selector("#stop", state="visible")
    page.click("#open-chats")
    page.locator(".chat-open", has_text="Why").first.click()
    page.wait_for_selector("#send", state="visible")
    assert mine(visit) == ["Why?"] and len(visit.answers()) == 1
    visit.page.wait_for_selector("button[aria-label='Regenerate']")


def test_versions_of_a_text(visit: Visit) -> None:
    page = visit.page
    page.select_option("#model", "base.Q8_0")
    visit.ask("There was a dragon")
    again(visit, "Regenerate")
    assert shown_versions(visit) == ["2/2"]
    edit(visit, -1, "There was a knight")
    assert shown_versions(visit) == ["2/2"]
    assert page.locator("#messages").inner_text().startswith("There was a knight who")
    press(visit, BEFORE.format("text"))
    assert page.locator("#messages").inner_text().startswith("There was a dragon who")
    assert shown_versions(visit) == ["1/2", "2/2"]


OLD = {
    "id": "old-1",
    "created": 1,
    "changed": 2,
    "messages": [
        {"role": "user", "content": "An old question"},
        {
            "role": "assistant",
            "content": "An *old* answer",
            "model": "m",
            "timings": {"predicted_n": 3, "predicted_per_second": 2.5},
        },
    ],
}


def test_what_was_kept_before_opens(visit: Visit) -> None:
    page = visit.page
    page.evaluate("(chat) => localStorage.setItem('powerinfer.chat.old-1', chat)", json.dumps(OLD))
    page.click("#open-chats")
    page.locator(".chat-open", has_text="An old question").click()
    assert visit.answers() == ["An old answer"] and "2.5 tokens/s" in page.inner_text(".speed")
    again(visit, "Regenerate")
    assert shown_versions(visit) == ["2/2"]


def choose(visit: Visit, name: str, data: bytes) -> str:
    file = {"name": name, "mimeType": "application/json", "buffer": data}
    visit.page.evaluate("document.getElementById('chats-said').textContent = ''")
    visit.page.set_input_files("#chats-file", files=[file])
    visit.until("document.getElementById('chats-said').textContent !== ''")
    return visit.page.inner_text("#chats-said")


def keys(visit: Visit) -> list[str]:
    return visit.page.evaluate("Object.keys(localStorage).filter((k) => k.includes('.chat.'))")


def test_export_and_import(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    visit.ask("one")
    edit(visit, 0, "other")
    page.click("#new-chat")
    visit.ask("/think")
    page.click("#open-chats")
    with page.expect_download() as download:
        page.click("#export-chats")
    assert download.value.suggested_filename.startswith("conversations-20")
    download.value.save_as(tmp_path / "all.json")
    data = (tmp_path / "all.json").read_bytes()
    kept = page.evaluate("JSON.stringify(localStorage)")
    said = choose(visit, "all.json", data)
    assert said == "Nothing is new. 2 conversations of it were here already."
    assert page.evaluate("JSON.stringify(localStorage)") == kept
    for name in ("other", "/think"):
        press(visit, f"Delete “{name}”")
    assert keys(visit) == [] and page.is_disabled("#export-chats")
    assert choose(visit, "all.json", data) == "Imported 2 conversations."
    assert (
        json.loads(page.evaluate("JSON.stringify(localStorage)")).keys() == json.loads(kept).keys()
    )
    page.locator(".chat-open", has_text="other").click()
    press(visit, BEFORE.format("message"))
    assert mine(visit) == ["one"]
    # The same conversation with other content gets a place of its own.
    page.click("#open-chats")
    changed = json.loads(data)["conversations"][0]
    changed["messages"][0]["content"] = "changed elsewhere"
    one = json.dumps(changed).encode()
    assert choose(visit, "one.json", one) == "Imported 1 conversation."
    assert len(keys(visit)) == 3
    titles = page.locator(".chat-title").all_inner_texts()
    assert sorted(titles) == sorted(["one", "/think", "changed elsewhere"])
    assert choose(visit, "list.json", json.dumps([OLD]).encode()) == "Imported 1 conversation."


def a_chat(**fields: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": "a", **fields}]})


BAD = {
    "{": "it is not JSON",
    "[]": "there is no conversation in it",
    "null": "there is no conversation in it",
    '{"a": 1}': "there is no conversation in it",
    '{"messages": []}': "there is no message",
    '{"messages": [{}]}': "message 1 is of neither “user” nor “assistant”",
    '{"messages": [{"role": "user"}]}': "message 1 has no text (“content”)",
    a_chat(role="system"): "message 1 is of neither",
    a_chat(tool_calls=1): "“tool_calls” that are no list",
    a_chat(tool_calls=[{}]): "a call without a name",
    a_chat(branches={"at": 2, "tails": [None]}): "message 1 has versions that do not fit",
    a_chat(branches={"at": 0, "tails": [None, []]}): "message 1 has versions that do not fit",
    a_chat(branches={"at": 0, "tails": [None, [3]]}): (
        "a version of message 1, message 1 is no object"
    ),
    f'[{a_chat()}, {{"messages": [1]}}]': "in conversation 2, message 1 is no object",
    "[" * 100000: "it is not JSON",
}


def test_bad_files_are_told(visit: Visit) -> None:
    """Nothing of them is kept, also not their good parts."""
    visit.page.click("#open-chats")
    for data, words in BAD.items():
        said = choose(visit, "bad.json", data.encode())
        assert said.startswith("“bad.json” was not imported: ") and words in said, (data[:90], said)
        assert said.endswith(".") and keys(visit) == []
    # Markup of a file is text; ids and numbers that are none are replaced.
    chat = {
        "id": "../x",
        "changed": "<b>",
        "messages": [{"role": "user", "content": "<img src=x>"}],
    }
    assert choose(visit, "odd.json", json.dumps(chat).encode()) == "Imported 1 conversation."
    assert visit.page.locator(".chat-title").inner_text() == "<img src=x>"
    assert "powerinfer.chat.../x" not in keys(visit)


def test_a_full_storage(visit: Visit) -> None:
    visit.page.click("#open-chats")
    visit.page.evaluate("localStorage.setItem('filler', 'x'.repeat(5e6))")
    chats = [{"messages": [{"role": "user", "content": c * 150000}]} for c in "abcd"]
    said = choose(visit, "large.json", json.dumps(chats).encode())
    assert said == "“large.json” was not imported: this browser's storage is full."
    assert keys(visit) == []


def test_thoughts(visit: Visit) -> None:
    """Folded; they come live while they are open, and go back to the model."""
    page = visit.page
    visit.send("/think")
    summary = page.locator(".thoughts summary")
    summary.wait_for()
    assert summary.inner_text() == "Thinking…"
    assert page.locator(".thoughts").get_attribute("open") is None
    summary.click()
    visit.until("document.querySelector('.thoughts .markdown').innerText.includes('The user')")
    page.wait_for_selector("#send", state="visible")
    assert summary.inner_text() == "Thought for 1 s"
    # What was opened stays open; Markdown and formulas are read in thoughts, too.
    inner = page.locator(".thoughts .markdown")
    assert inner.is_visible() and inner.locator("strong").inner_text() == "add"
    assert inner.locator("math").count() == 1 and inner.locator("li").count() == 2
    assert visit.answers() == ["It is 21."]
    assert page.locator("#status").inner_text() == "It is **21**."
    summary.focus()
    page.keyboard.press("Enter")
    assert inner.is_hidden()
    visit.ask("Sure?")
    sent = visit.state()["bodies"][-1]["messages"]
    assert sent[1]["content"] == "It is **21**." and "So the answer" in sent[1]["reasoning_content"]
    assert set(sent[0]) == set(sent[2]) == {"role", "content"}
    page.reload()
    page.click("#open-chats")
    page.locator(".chat-open").first.click()
    assert summary.inner_text() == "Thought for 1 s"
    page.click("#new-chat")
    visit.ask("/thought")
    assert "ended within its thoughts" in page.locator(".speed").inner_text()


def test_calls(visit: Visit) -> None:
    page = visit.page
    visit.ask("/tools")
    assert page.locator(".call .code-head").all_inner_texts() == ["calls weather", "calls now"]
    given = page.locator(".call pre").all_inner_texts()
    assert given[0] == (
        '{\n  "city": "Bern",\n  "days": [\n    1,\n    2\n  ],\n'
        '  "id": 12345678901234567890,\n  "u": {}\n}'
    )
    assert given[1] == "{}"
    assert "without a word" not in page.locator(".speed").inner_text()
    visit.ask("And?")
    calls = visit.state()["bodies"][-1]["messages"][1]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather", "now"]
    assert json.loads(calls[0]["function"]["arguments"])["city"] == "Bern"
    assert calls[1]["id"] == "call-1" and calls[1]["type"] == "function"


def test_arguments_over_lines(visit: Visit) -> None:
    for text in ('{"a":[1,{"b":"x, \\"y\\": {"}],"c":[],"d":{}}', "[]", '"a: b"', "17"):
        assert visit.check("prettied", text) == json.dumps(json.loads(text), indent=2), text
    for text in ('{"a":', "plain", ""):
        assert visit.check("prettied", text) == text


def watchers(visit: Visit, model: str, n: int) -> None:
    for _ in range(50):
        if visit.state()["watchers"][model] == n:
            return
        visit.page.wait_for_timeout(100)
    raise AssertionError(visit.state()["watchers"])


def test_the_view_of_a_dense_model(visit: Visit) -> None:
    """One line with speed and memory: all of its neurons run, which is no picture."""
    page = visit.page
    page.select_option("#model", "dense-1b.Q4_K_M")
    page.wait_for_selector("#view.folded")
    page.wait_for_selector(".greeting h2:text-is('Ask something.')")
    assert page.locator("#map").is_hidden() and page.locator("#tiers").is_hidden()
    assert page.locator("#fold-view").is_hidden()
    box = page.locator("#view").bounding_box()
    assert box["height"] < 50
    visit.ask(STORY)
    line = page.inner_text("#view-line")
    assert line == "18.3 tokens/s · RAM 1.2 GB · dense: every neuron runs"
    watchers(visit, "dense-1b.Q4_K_M", 0)
    page.select_option("#model", "bamboo-7b.Q4_0")
    page.wait_for_selector("#map", state="visible")
    assert page.locator("#fold-view").is_visible()


def test_the_view_is_folded_by_hand(visit: Visit) -> None:
    page = visit.page
    page.wait_for_selector("#map", state="visible")
    watchers(visit, "bamboo-7b.Q4_0", 1)
    page.focus("#fold-view")
    page.keyboard.press("Enter")
    assert page.locator("#map").is_hidden()
    assert page.get_attribute("#fold-view", "aria-expanded") == "false"
    watchers(visit, "bamboo-7b.Q4_0", 0)
    visit.ask(STORY)
    assert page.inner_text("#view-line") == "18.3 tokens/s · GPU 698 MB · RAM 1.8 GB"
    assert not visit.check("nameless") and not visit.check("pale")
    page.reload()
    page.wait_for_selector("#view.folded")
    page.click("#fold-view")
    page.wait_for_selector("#map", state="visible")
    assert page.get_attribute("#fold-view", "aria-expanded") == "true"
    visit.ask(STORY)
    page.wait_for_selector("#share-text:has-text('on average')")


def test_nothing_breaks_on_a_phone(browser, address) -> None:
    """Code, tables and formulas scroll within themselves."""
    visit = Visit(browser, address, 360, 740, device_scale_factor=2)
    page = visit.page
    for text in ("/code", "/math", "/think", "/tools"):
        visit.ask(text)
        for element in ("document.documentElement", "document.getElementById('scroll')"):
            assert page.evaluate(f"{element}.scrollWidth <= {element}.clientWidth"), (text, element)
        assert not visit.check("nameless") and not visit.check("pale")
    assert page.locator(".code-head span").all_inner_texts()[:3] == ["text", "cpp", "js"]
    pre = "document.querySelectorAll('pre')[1]"
    assert page.evaluate(f"{pre}.scrollWidth > {pre}.clientWidth + 100")
    page.evaluate(f"{pre}.focus()")
    page.keyboard.press("ArrowRight")
    visit.until(f"{pre}.scrollLeft > 0")
    edit(visit, 0, "x" * 300)
    assert page.evaluate("document.getElementById('scroll').scrollWidth <= innerWidth")
    page.click("#open-chats")
    dialog = "document.getElementById('chats')"
    assert page.evaluate(f"{dialog}.scrollWidth <= {dialog}.clientWidth")
    visit.close()
