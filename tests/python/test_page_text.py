"""How the page writes answers: Markdown, code and formulas, also while they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_visit import Visit, address, browser, visit  # noqa: F401 (fixtures)

# ruff: noqa: F811

pytestmark = [pytest.mark.slow, pytest.mark.peer("playwright")]


def test_markdown(visit: Visit) -> None:
    page = visit.page
    visit.ask("/markdown")
    body = page.locator(".answer .body")
    assert body.locator("h3").inner_text() == "Rust in a page"
    assert body.locator("strong").inner_text() == "list"
    assert body.locator("ol > li").count() == 2 and body.locator("ol ul li").count() == 1
    assert body.locator("table td").all_inner_texts() == ["GPU", "812 MB", "RAM", "96 MB"]
    assert body.locator("a").count() == 1
    link = body.locator("a")
    assert link.get_attribute("href") == "https://example.org/"
    assert "noopener" in link.get_attribute("rel")
    assert body.locator("b, img, script").count() == 0
    assert "<b>not bold</b>" in body.inner_text() and "max_tokens_here" in body.inner_text()
    body.locator(".code button").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "def fire(neurons):\n    return [n for n in neurons if n > 0]"
    visit.shot("markdown")


CASES = {
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    "a_b_c and _d_": "<p>a_b_c and <em>d</em></p>",
    "2 * 3 * 4": "<p>2 * 3 * 4</p>",
    "***both***": "<p><strong><em>both</em></strong></p>",
    r"\*plain\*": "<p>*plain*</p>",
    "`` a`b ``": "<p><code>a`b</code></p>",
    "`open": "<p>`open</p>",
    "~~gone~~": "<p><del>gone</del></p>",
    "a  \nb": "<p>a<br>b</p>",
    "- a\n- b\n\n  c": "<ul><li><p>a</p></li><li><p>b</p><p>c</p></li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "- a\n  - b\n- c": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "a\n***\nb": "<p>a</p><hr><p>b</p>",
    "#tag": "<p>#tag</p>",
    "## a ##": "<h4>a</h4>",
    "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
    "[x](data:text/html,a)": "<p>[x](data:text/html,a)</p>",
    "<script>alert(1)</script>": "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>",
    "see https://a.org/b_c_d.": '<p>see <a href="https://a.org/b_c_d" target="_blank" '
    'rel="noopener noreferrer">https://a.org/b_c_d</a>.</p>',
}


def test_markdown_cases(visit: Visit) -> None:
    for source, html in CASES.items():
        once, grown, streamed, astray = visit.check("render", source)
        assert once == html, source
        assert grown == html, f"letter by letter: {source}"
        assert streamed == html, f"letter by letter, as it comes: {source}"
        assert not astray, f"words whose place in the source is wrong: {source}"
    text = Path(__file__).with_name("page_server.py").read_text()
    once, grown, streamed, astray = visit.check("render", text[:3000])
    assert once == grown == streamed and not astray


# What stands at the end of a text of which more may come.
BEGUN = {
    "a **Keep": "<p>a <strong>Keep</strong></p>",
    "a **Keep*": "<p>a <strong>Keep</strong></p>",
    "a **": "<p>a </p>",
    "**a *b": "<p><strong>a <em>b</em></strong></p>",
    "a `co": "<p>a <code>co</code></p>",
    "a ``co`": "<p>a <code>co</code></p>",
    "~~go~": "<p><del>go</del></p>",
    "see [the pa": "<p>see the pa</p>",
    "see [the page](https://exam": "<p>see the page</p>",
    "f[0] is [1] and": "<p>f[0] is [1] and</p>",
    "2*3 and 4_5": "<p>2*3 and 4_5</p>",
    "a\n-": "<p>a</p>",
    "a\n\n1.": "<p>a</p>",
    "42": "<p>42</p>",
    "- **a": "<ul><li><strong>a</strong></li></ul>",
    "> *a": "<blockquote><p><em>a</em></p></blockquote>",
    "**a\n\nb": "<p>**a</p><p>b</p>",  # a paragraph that has ended closes nothing
}


def test_an_open_end(visit: Visit) -> None:
    for source, html in BEGUN.items():
        assert visit.check("begun", source) == html, source
    table = visit.check("begun", "| a | b |")
    assert "<th>a</th><th>b</th>" in table and "|" not in table
    for row in ("|", "| -", "| --- |", "| --- | -"):
        assert visit.check("begun", f"| a | b |\n{row}") == table, row
    assert "<td>1</td>" in visit.check("begun", "| a | b |\n| - | - |\n| 1")
    code = visit.check("begun", "```py\nx = 1\n``")
    assert ">x = 1</code>" in code and "`" not in code


STREAMED = r"""# A **bold** head

Some **Keep** and *this* with `code`, [a link](https://example.org/) and ~~gone~~ words.

- **one** item with `code`
- *another*
  - an inner **one**

1. first $a_1 + b_1$
2. second \(c_2\)

```python
def fire(neurons):
    return [n for n in neurons if n > 0]
```

| tier | **read** |
| --- | --- |
| GPU | `812` MB |
| RAM | 96 MB |

$$
\frac{a}{b} = \sqrt{c}
$$

The end, which is **long enough** to be more than one line of the page, so that it wraps somewhere.
"""


def test_no_mark_is_seen_while_it_comes(visit: Visit) -> None:
    marks = ["**", "`", "](", "~~", "---", "$", "\\(", "| "]
    assert visit.check("marksSeen", [STREAMED, marks]) == []


def test_what_stands_does_not_move(visit: Visit) -> None:
    """Blocks that are finished keep their elements, their places and their content."""
    wrong, many = visit.check("moved", STREAMED)
    assert not wrong
    assert many > 10


def kinds(visit: Visit, which: int = 0) -> list[list[str]]:
    """The coloured parts of a code: kind and text."""
    return visit.page.evaluate(
        "(k) => [...document.querySelectorAll('pre code')[k].querySelectorAll('[class^=k-]')]"
        ".map((e) => [e.className, e.textContent])",
        which,
    )


def test_colours_of_code(visit: Visit) -> None:
    """Once the code is closed, and again for all that was rendered before."""
    page = visit.page
    many = len(visit.state()["coloured"])
    visit.ask("/markdown")
    visit.until("document.querySelectorAll('[class^=k-]').length > 0")
    found = kinds(visit)
    assert found[0] == ["k-keyword", "def"] and ["k-keyword", "return"] in found
    code = "def fire(neurons):\n    return [n for n in neurons if n > 0]"
    assert page.inner_text("pre code") == code
    asked = visit.state()["coloured"][many:]
    assert asked == [{"language": "python", "code": code}], "once, and not while it grows"
    # Words keep their places: their neurons are shown, also from within a colour.
    words = page.locator("pre .w")
    assert "".join(words.all_inner_texts()) == "".join(code.split())
    page.hover("pre .k-keyword >> text=return")
    assert page.locator("pre .w.held").inner_text() == "return"
    visit.shot("colours")
    page.click("button[aria-label='Copy the code']")
    assert page.evaluate("navigator.clipboard.readText()") == code
    # After a reload the answer is there at once, and its colours soon.
    page.reload()
    visit.until("document.querySelectorAll('[class^=k-]').length > 0")
    assert kinds(visit) == found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(browser, address, scheme: str) -> None:
    visit = Visit(browser, address, color_scheme=scheme)
    script = """() => {
        const parent = document.createElement('div');
        parent.className = 'code';
        for (const sheet of document.styleSheets) for (const {selectorText} of sheet.cssRules)
            if (selectorText?.startsWith('.k-')) {
                const part = document.createElement('span');
                part.className = selectorText.slice(1);
                part.textContent = 'x';
                parent.append(part);
            }
        document.getElementById('messages').append(parent);
        return parent.children.length;
    }"""
    assert visit.page.evaluate(script) == 9
    assert not visit.check("pale")
    visit.close()


def test_colours_of_what_nothing_closes(visit: Visit) -> None:
    """When the answer has ended. Characters of two units do not shift the colours."""
    visit.ask("/fence")
    visit.until("document.querySelectorAll('[class^=k-]').length > 0")
    found = kinds(visit)
    assert found[0] == ["k-keyword", "return"] and ["k-comment", "#"] in found
    assert "".join(text for kind, text in found if kind == "k-string") == '"\U0001f525fire"'


def answering(body: str) -> Callable[[Any], None]:
    return lambda route: route.fulfill(body=body)


def test_colours_that_a_server_should_not_send(visit: Visit) -> None:
    page = visit.page
    many = len(visit.state()["coloured"])
    visit.ask("/code")
    for _ in range(50):
        asked = visit.state()["coloured"][many:]
        if len(asked) == 2:
            break
        page.wait_for_timeout(50)
    assert [each["language"] for each in asked] == ["cpp", "js"], "one without a language: not"
    page.wait_for_timeout(200)
    assert page.locator("pre img").count() == 0 and kinds(visit, 2) == []
    assert page.locator("pre code").nth(2).inner_text() == "const a = 1;"
    assert page.evaluate("window.hacked") is None
    # Spans that do not fit the code.
    for spans in ('[["keyword", 1]]', '[["keyword", 1e9]]', '[["keyword"]]', "[3]", '"x"', "{}"):
        page.route("**/highlight", answering(f'{{"spans": {spans}}}'))
        page.reload()
        page.wait_for_selector("pre code")
        page.wait_for_timeout(100)
        assert page.locator("[class^=k-]").count() == 0, spans
    # A server that has no colours is asked once.
    visit.expected = ["Failed to load resource"]
    asked = []
    page.unroute("**/highlight")
    page.route("**/highlight", lambda route: (asked.append(1), route.fulfill(status=404)))
    page.reload()
    page.wait_for_selector("pre code")
    page.wait_for_timeout(200)
    assert len(asked) == 1


FORMULAS = {
    "x_1^{10}": "msubsup(mi:x mn:1 mn:10)",
    "x^10": "mrow(msup(mi:x mn:1) mn:0)",
    r"\frac12": "mfrac(mn:1 mn:2)",
    r"\sqrt[3]{x}": "mroot(mi:x mn:3)",
    r"\alpha\Omega": "mrow(mi:α mi:Ω)",
    r"\alpha*b": "mrow(mi:α mo:∗ mi:b)",
    r"\sum_{i=1}^n i": "mrow(munderover(mo:∑ mrow(mi:i mo:= mn:1) mi:n) mi:i)",
    r"\int_0^\infty": "msubsup(mo:∫ mn:0 mi:∞)",
    r"\lim_{x \to 0} \sin x": "mrow(munder(mo:lim mrow(mi:x mo:→ mn:0)) mspace() mi:sin "
    "mspace() mi:x)",
    "f'(x)": "mrow(msup(mi:f mo:′) mo:( mi:x mo:))",
    r"\text{if } x": "mrow(mtext:if\u00a0 mi:x)",
    r"\mathbb{R}^n": "msup(mi:ℝ mi:n)",
    r"\mathbf{A}": "mi:𝐀",
    r"\hat{y}": "mover(mi:y mo:^)",
    r"\left( \frac{a}{b} \right]": "mrow(mo:( mfrac(mi:a mi:b) mo:])",
    r"\binom{n}{k}": "mrow(mo:( mfrac(mi:n mi:k) mo:))",
    r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}": "mrow(mo:( mtable(mtr(mtd(mi:a) mtd(mi:b)) "
    "mtr(mtd(mi:c) mtd(mi:d))) mo:))",
    r"\begin{cases} 1 & x > 0 \\ 0 \end{cases}": "mrow(mo:{ mtable(mtr(mtd(mn:1) "
    "mtd(mrow(mi:x mo:> mn:0))) mtr(mtd(mn:0))))",
    r"a &= b \\ &= c": "mtable(mtr(mtd(mi:a) mtd(mrow(mo:= mi:b))) mtr(mtd(mrow()) "
    "mtd(mrow(mo:= mi:c))))",
    r"a \not= b": "mrow(mi:a mo:≠ mi:b)",
    r"50\% \le x": "mrow(mn:50 mi:% mo:≤ mi:x)",
    r"\boxed{42}": "mrow(mn:42)",
    r"\unheard{x}": None,
    "x^2^3": None,
    "{a": None,
    "a}": None,
    r"\left( a": None,
    r"\begin{pmatrix} a \end{cases}": None,
    "x^": None,
    "{" * 100 + "}" * 100: None,
}


def test_formulas(visit: Visit) -> None:
    for source, tree in FORMULAS.items():
        assert visit.check("formulaTree", source) == tree, source
    long = (
        r"\begin{aligned} f(x) &= \left\{ \frac{1}{2}\sum_{i=1}^{n} \sqrt[3]{x_i} \right\} "
        r"\\ &= \text{the end} \| v \| \hat{\mathbf{y}} \xrightarrow[a]{b} \end{aligned}"
    )
    assert visit.check("formulaTree", long) is not None
    assert visit.check("formulaBreaks", long) == [], "while it comes it is never its source"
    box = visit.check("formulaBox")
    assert box["stacked"] and box["height"] > 25 and box["width"] > 30


INLINE = {
    "$a_1 * b_2$ and $c_1*d$": 2,
    r"\(a_1 * b_2\) and \(c*d\)": 2,
    "$ E = mc^2 $ holds": 1,
    "$x$, $y$": 2,
    r"so $$\frac{a}{b}$$ it is": 1,
    "costs $5 and $6": 0,
    "costs $5-$10, or $5/month": 0,
    r"\$5 and \$6": 0,
    "`$x$` is code": 0,
    "US$5 and A$6": 0,
    r"see \[1\] and \[note\]": 0,
}


def test_formulas_in_text(visit: Visit) -> None:
    for source, many in INLINE.items():
        html, grown, streamed, _ = visit.check("render", source)
        assert html == grown == streamed, source
        assert html.count("<math") == many, source
        assert "<em>" not in html, source
    html = visit.check("render", "A\n$$\nx\n- y\n$$\nB")[0]
    assert html.count("<math") == 1 and html.startswith("<p>A</p><div") and "<ul>" not in html
    html = visit.check("render", r"- a:\n  \[\n  x = 1\n  \]\n- b".replace(r"\n", "\n"))[0]
    assert html.count("<li>") == 2 and html.count("<math") == 1
    # Not understood: the source in a box, and no markup in it.
    html = visit.check("render", r"$\foo_{<b>*a*}$")[0]
    assert html == r'<p><span class="math"><code class="tex">\foo_{&lt;b&gt;*a*}</code></span></p>'


SLOW = [
    "*a ",
    "`",
    "[",
    "> ",
    "- ",
    "_*",
    "$",
    "$$\n",
    "\\(",
    "\\[a\n",
    "\\[\n",
    "$a",
    "[a](",
    "|a\n",
]


@pytest.mark.parametrize("source", SLOW)
def test_markdown_takes_no_time(visit: Visit, source: str) -> None:
    # Quadratic time would be minutes; the machine may be busy.
    for open_ in (False, True):
        assert visit.check("renderTime", [source * 20000, open_]) < 3000
    assert visit.check("renderTime", ["$" + source * 3000 + "$", False]) < 3000
