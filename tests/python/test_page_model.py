"""What the page keeps over a reload, and what follows the choice of a model: the view, the switch
for thoughts, conversations."""

from __future__ import annotations

import json

import pytest
from page_visit import Visit, address, browser, visit  # noqa: F401 (fixtures)

# ruff: noqa: F811

pytestmark = [pytest.mark.slow, pytest.mark.peer("playwright")]

THINKS, SILENT, NEITHER = "bamboo-7b.Q4_0", "stories-relu.Q8_0", "mixture-8x.Q4_0"
SWITCH = "#think"


def reload(visit: Visit) -> None:
    visit.page.reload()
    visit.page.wait_for_selector("#model option", state="attached")


def mine(visit: Visit) -> list[str]:
    return visit.page.locator(".message.user .body").all_inner_texts()


def pressed(visit: Visit) -> str | None:
    visit.page.wait_for_selector(SWITCH, state="visible")
    return visit.page.get_attribute(SWITCH, "aria-pressed")


def last_sent(visit: Visit) -> dict:
    return visit.state()["bodies"][-1]


def open_chat(visit: Visit, name: str) -> None:
    visit.page.click("#open-chats")
    visit.page.locator(".chat-open", has_text=name).click()


def test_a_reload_goes_on(visit: Visit) -> None:
    page = visit.page
    visit.ask("one")
    visit.ask("two")
    before = visit.answers()
    reload(visit)
    assert mine(visit) == ["one", "two"] and visit.answers() == before
    visit.ask("three")
    assert [m["content"] for m in last_sent(visit)["messages"][::2]] == ["one", "two", "three"]
    page.click("#new-chat")
    reload(visit)
    assert mine(visit) == [] and page.locator(".greeting").count() == 1
    # Another tab begins with nothing: two would write over each other.
    other = visit.context.new_page()
    other.goto(visit.address)
    other.wait_for_selector(".greeting")
    # A conversation that was deleted elsewhere does not come back.
    open_chat(visit, "one")
    other.evaluate("localStorage.clear()")
    reload(visit)
    assert mine(visit) == []


def test_an_answer_that_a_reload_cuts_off(visit: Visit) -> None:
    page = visit.page
    visit.send("/long")
    visit.until("(document.querySelector('.answer .body')?.innerText || '').length > 40")
    reload(visit)
    assert visit.answers()[0].startswith("Once upon a time")
    assert "stopped" in page.inner_text(".speed")
    page.click("button[aria-label='Regenerate']")
    page.wait_for_selector("#stop", state="visible")
    page.click("#stop")
    page.wait_for_selector("#send", state="visible")


def test_models_of_tabs_and_conversations(visit: Visit) -> None:
    page = visit.page
    assert page.input_value("#model") == THINKS
    visit.ask("to the first")
    page.select_option("#model", SILENT)
    page.click("#new-chat")
    visit.ask("to the second")
    assert last_sent(visit)["model"] == SILENT
    # The view follows, and so does the model when a conversation is opened that another answered.
    open_chat(visit, "to the first")
    assert page.input_value("#model") == THINKS
    page.wait_for_selector("#map[aria-label*='458,752 neurons']")
    open_chat(visit, "to the second")
    assert page.input_value("#model") == SILENT
    page.wait_for_selector("#map[aria-label*='11,008 neurons']")
    # Another tab's choice is not this one's.
    other = visit.context.new_page()
    other.goto(visit.address)
    other.wait_for_selector("#model option", state="attached")
    assert other.input_value("#model") == SILENT
    other.select_option("#model", NEITHER)
    reload(visit)
    assert page.input_value("#model") == SILENT and mine(visit) == ["to the second"]
    # One that is not served any more: the conversation is shown, by a model that is there.
    gone = [{"role": "user", "content": "to none"}]
    gone += [{"role": "assistant", "content": "x", "model": "gone"}]
    chat = json.dumps({"id": "a", "created": 1, "changed": 2, "messages": gone})
    page.evaluate("(chat) => localStorage.setItem('powerinfer.chat.a', chat)", chat)
    open_chat(visit, "to none")
    assert page.input_value("#model") == SILENT and visit.answers() == ["x"]


def test_the_switch_for_thoughts(visit: Visit) -> None:
    page = visit.page
    assert pressed(visit) == "true"
    visit.ask("Why?")
    assert "enable_thinking" not in last_sent(visit), "nobody chose"
    page.click(SWITCH)
    assert pressed(visit) == "false"
    visit.ask("And now?")
    assert last_sent(visit)["enable_thinking"] is False
    # Each model has its own choice, and the browser remembers it.
    page.select_option("#model", SILENT)
    assert pressed(visit) == "false"
    page.focus(SWITCH)
    page.keyboard.press("Enter")
    assert pressed(visit) == "true"
    visit.ask("And now?")
    assert last_sent(visit)["enable_thinking"] is True
    reload(visit)
    assert pressed(visit) == "true"
    page.select_option("#model", THINKS)
    assert pressed(visit) == "false"
    assert not visit.check("nameless") and not visit.check("pale")
    # Where a request cannot choose there is no switch.
    page.select_option("#model", NEITHER)
    page.wait_for_selector(SWITCH, state="hidden")
    visit.ask("And now?")
    assert "enable_thinking" not in last_sent(visit)


def test_a_server_without_a_switch(visit: Visit) -> None:
    visit.expected = ["Failed to load resource"]
    visit.page.route("**/props?*", lambda route: route.fulfill(status=404, body="{}"))
    reload(visit)
    visit.ask("Why?")
    assert visit.page.is_hidden(SWITCH)


FORBIDDEN = """for (const name of ['localStorage', 'sessionStorage'])
    Object.defineProperty(window, name, {get() { throw new DOMException('no', 'SecurityError'); }});
"""


def test_storage_that_is_forbidden(visit: Visit) -> None:
    page = visit.page
    page.add_init_script(FORBIDDEN)
    reload(visit)
    visit.ask("one")
    page.click(SWITCH)
    visit.ask("two")
    assert last_sent(visit)["enable_thinking"] is False
    assert len(visit.answers()) == 2 and page.inner_text("#notice") == ""
    page.click("#open-chats")
    assert page.locator(".chat-open").count() == 1
    page.keyboard.press("Escape")
    reload(visit)
    assert mine(visit) == []


def test_space_for_conversations(visit: Visit) -> None:
    """They have a limit below the browser's own, so that settings can still be kept."""
    page = visit.page
    text = json.dumps({"messages": [{"role": "user", "content": "x" * (4 << 20)}]})
    page.evaluate("(chat) => localStorage.setItem('powerinfer.chat.big', chat)", text)
    visit.ask("one")
    assert "storage is full" in page.inner_text("#notice")
    page.click(SWITCH)
    assert page.evaluate("localStorage.getItem('powerinfer.settings')").count('"thinking"') == 1
    page.evaluate("localStorage.removeItem('powerinfer.chat.big')")
    visit.ask("two")
    assert page.inner_text("#notice") == ""
    reload(visit)
    assert mine(visit) == ["one", "two"]
    # What is no setting is none.
    page.evaluate("localStorage.setItem('powerinfer.settings', '3')")
    page.evaluate("sessionStorage.setItem('powerinfer.tab', '[]')")
    reload(visit)
    assert mine(visit) == [] and page.input_value("#model") == THINKS


def test_a_model_that_is_being_loaded(visit: Visit) -> None:
    page = visit.page
    states = ["loading", "loaded"]

    def models(route) -> None:
        entry = {"id": THINKS, "chat_format": "template", "status": {"value": states.pop(0)}}
        route.fulfill(json={"data": [entry]})

    page.route("**/v1/models", models)
    reload(visit)
    page.wait_for_selector("#notice:has-text('still loads')")
    assert page.is_hidden("#view")
    page.wait_for_selector("#map", state="visible")
    assert page.inner_text("#notice") == "" and states == []
    assert page.is_disabled("#model")
