// A small Markdown renderer. It builds nodes, so nothing in an answer can become markup.
//
// `parse` gives blocks whose text knows its place in the source; hovering over a word needs that to
// find the word's tokens. `Rendered` keeps the blocks of an answer that grows: all but the last
// blocks stay as they are, so a long answer costs no more per token than a short one.

import {iconButton, make, say} from './dom.js';

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const MARKER = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const ROW = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEPTH = 8;  // of quotes and lists in each other: deeper ones are plain text
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const ADDRESS = /https?:\/\/[^\s<>"'`]+/y;
// Where scripts have no spaces between words, each character is one.
const DENSE = String.raw`\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}`;
const WORDS = new RegExp(`[${DENSE}]|[^\\s${DENSE}]+`, 'gu');

const indent = (text) => text.length - text.trimStart().length;
const cut = (line, n) => ({text: line.text.slice(n), at: line.at + n});

export function parse(source) {
    const lines = [];
    let at = 0;
    for (const text of source.split('\n')) {
        lines.push({text: text.endsWith('\r') ? text.slice(0, -1) : text, at});
        at += text.length + 1;
    }
    return blocks(lines, 0);
}

function blocks(lines, depth) {
    const found = [];
    let i = 0;
    while (i < lines.length) {
        if (!lines[i].text.trim()) {
            i += 1;
            continue;
        }
        const block = fence(lines, i) || leaf(lines, i) || table(lines, i) ||
            (depth < DEPTH && (quote(lines, i, depth) || list(lines, i, depth))) ||
            paragraph(lines, i, depth);
        const last = lines[block.next - 1];
        found.push({...block, at: lines[i].at, end: last.at + last.text.length});
        i = block.next;
    }
    return found;
}

function fence(lines, i) {
    const open = FENCE.exec(lines[i].text);
    // More backticks in the line: that is code inside a sentence.
    if (!open || (open[1][0] === '`' && lines[i].text.includes('`', open[0].length))) return null;
    const close = new RegExp(`^ {0,3}${open[1][0]}{${open[1].length},}\\s*$`);
    const strip = indent(lines[i].text);
    let next = i + 1;
    while (next < lines.length && !close.test(lines[next].text)) next += 1;
    const body = lines.slice(i + 1, next).map((l) => cut(l, Math.min(strip, indent(l.text))));
    return {kind: 'code', language: open[2], lines: body, next: Math.min(next + 1, lines.length)};
}

function leaf(lines, i) {
    const heading = HEADING.exec(lines[i].text);
    if (heading) {
        const text = lines[i].text.slice(heading[0].length).trim().replace(/\s#+$/, '');
        const start = text ? lines[i].text.indexOf(text, heading[1].length) : 0;
        const line = {text, at: lines[i].at + start};
        return {kind: 'heading', level: heading[1].length, lines: [line], next: i + 1};
    }
    return RULE.test(lines[i].text) ? {kind: 'rule', next: i + 1} : null;
}

function cells(line) {
    const found = [];
    let start = indent(line.text);
    if (line.text[start] === '|') start += 1;
    const stop = line.text.trimEnd().length;
    for (let i = start; i <= stop; i++) {
        if (i < stop && (line.text[i] !== '|' || line.text[i - 1] === '\\')) continue;
        const cell = line.text.slice(start, i);
        if (i < stop || cell.trim()) {
            found.push({text: cell.trim(), at: line.at + start + indent(cell)});
        }
        start = i + 1;
    }
    return found;
}

function table(lines, i) {
    if (i + 1 >= lines.length || !lines[i].text.includes('|')) return null;
    if (!ROW.test(lines[i + 1].text) || !lines[i + 1].text.includes('-')) return null;
    const head = cells(lines[i]);
    if (cells(lines[i + 1]).length !== head.length) return null;
    const rows = [];
    let next = i + 2;
    for (; next < lines.length && lines[next].text.includes('|'); next++) {
        rows.push(cells(lines[next]).slice(0, head.length));
    }
    return {kind: 'table', head, rows, next};
}

function quote(lines, i, depth) {
    if (!QUOTE.test(lines[i].text)) return null;
    const inner = [];
    let next = i;
    for (; next < lines.length; next++) {
        const mark = QUOTE.exec(lines[next].text);
        if (!mark && (!lines[next].text.trim() || starts(lines, next))) break;
        inner.push(mark ? cut(lines[next], mark[0].length) : lines[next]);
    }
    return {kind: 'quote', blocks: blocks(inner, depth + 1), next};
}

function list(lines, i, depth) {
    const first = MARKER.exec(lines[i].text);
    if (!first || first[1].length > 3) return null;
    const kind = (mark) => (/\d/.test(mark) ? mark.at(-1) : mark);
    const base = first[1].length;
    const items = [];
    let next = i;
    let loose = false;
    while (next < lines.length) {
        const mark = MARKER.exec(lines[next].text);
        if (!mark || RULE.test(lines[next].text) || kind(mark[2]) !== kind(first[2])) break;
        if (mark[1].length >= base + 2) break;
        const width = mark[1].length + mark[2].length + Math.min(Math.max(mark[3].length, 1), 4);
        const inner = [cut(lines[next], Math.min(width, lines[next].text.length))];
        let blank = false;
        for (next += 1; next < lines.length; next++) {
            const {text} = lines[next];
            if (!text.trim()) {
                blank = true;
                inner.push(lines[next]);
                continue;
            }
            // Models indent by two where the standard wants three; both are meant as "inside".
            if (indent(text) < base + 2 && (blank || MARKER.test(text) || starts(lines, next)))
                break;
            if (blank) loose = true;
            inner.push(cut(lines[next], Math.min(indent(text), width)));
            blank = false;
        }
        while (inner.length > 1 && !inner.at(-1).text.trim()) inner.pop();
        items.push(blocks(inner, depth + 1));
    }
    const ordered = /\d/.test(first[2]);
    return {kind: 'list', ordered, start: parseInt(first[2], 10), items, loose, next};
}

// Whether a line begins a block that ends a paragraph before it.
function starts(lines, i) {
    const {text} = lines[i];
    return FENCE.test(text) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text);
}

function paragraph(lines, i, depth) {
    let next = i + 1;
    for (; next < lines.length; next++) {
        const {text} = lines[next];
        const marker = depth < DEPTH && MARKER.test(text) && indent(text) < 4;
        if (!text.trim() || marker || starts(lines, next)) break;
        if (table(lines, next)) break;
    }
    const inner = lines.slice(i, next).map((l) => cut(l, indent(l.text)));
    return {kind: 'paragraph', lines: inner, next};
}

// --- Inside a line ---------------------------------------------------------------------------

// The lines' text as one string, and the place in the source of each position in it.
function joined(lines) {
    const starts = [];
    let text = '';
    for (const line of lines) {
        starts.push({from: text.length, at: line.at});
        text += `${line.text}\n`;
    }
    const place = (position) => {
        let k = starts.length - 1;
        while (k > 0 && starts[k].from > position) k -= 1;
        return starts[k].at + position - starts[k].from;
    };
    return {text: text.slice(0, -1), place};
}

class Inline {
    constructor(lines) {
        const {text, place} = joined(lines);
        this.text = text;
        this.place = place;
        this.without = new Map();  // mark -> from where on it is known not to be closed
    }

    // The nodes of text[from, to).
    read(from, to, depth = 0) {
        const out = [];
        let plain = from;
        let i = from;
        const flush = (until) => {
            if (until > plain) {
                out.push({kind: 'text', text: this.text.slice(plain, until), from: plain});
            }
        };
        while (i < to) {
            const made = depth < DEPTH ? this.at(i, to, depth) : null;
            if (!made) {
                i += 1;
                continue;
            }
            flush(i);
            if (made.node) out.push(made.node);
            i = plain = made.next;
            if (made.keep) i += made.keep;
        }
        flush(to);
        return out;
    }

    // What begins at i, and where it ends; null for plain text.
    at(i, to, depth) {
        const c = this.text[i];
        if (c === '\\' && i + 1 < to) {
            if (this.text[i + 1] === '\n') return {node: {kind: 'break'}, next: i + 2};
            return PUNCTUATION.test(this.text[i + 1]) ? {next: i + 1, keep: 1} : null;
        }
        if (c === ' ') {
            // Two spaces at the end of a line break it.
            const n = this.run(i, to);
            if (n > 1 && this.text[i + n] === '\n') return {node: {kind: 'break'}, next: i + n + 1};
            return {next: i, keep: n};
        }
        if (c === '`') return this.code(i, to);
        if (c === '*' || c === '_' || c === '~') return this.emphasis(i, to, depth);
        if (c === '[') return this.link(i, to, depth);
        if (c === 'h') return this.address(i, to);
        return null;
    }

    // The next `mark` in [from, to), or -1. A search that failed is not repeated: an answer of ten
    // thousand stars must not take seconds.
    find(mark, from, to) {
        if ((this.without.get(mark) ?? Infinity) <= from) return -1;
        const at = this.text.indexOf(mark, from);
        if (at < 0) this.without.set(mark, from);
        return at < 0 || at + mark.length > to ? -1 : at;
    }

    run(i, to) {
        let n = 1;
        while (i + n < to && this.text[i + n] === this.text[i]) n += 1;
        return n;
    }

    code(i, to) {
        const n = this.run(i, to);
        const mark = '`'.repeat(n);
        let end = this.find(mark, i + n, to);
        while (end >= 0 && this.run(end, to) !== n)
            end = this.find(mark, end + this.run(end, to), to);
        if (end < 0) return {next: i, keep: n};
        let [a, b] = [i + n, end];
        const body = this.text.slice(a, b);
        if (body.startsWith(' ') && body.endsWith(' ') && body.trim()) [a, b] = [a + 1, b - 1];
        const text = this.text.slice(a, b).replace(/\n/g, ' ');
        return {node: {kind: 'code', text, from: a}, next: end + n};
    }

    emphasis(i, to, depth) {
        const c = this.text[i];
        const n = Math.min(this.run(i, to), 3);
        if (c === '~' && n !== 2) return {next: i, keep: n};
        const mark = c.repeat(n);
        const inside = i + n;
        // Between letters an underscore is part of a name, as in max_tokens.
        const word = (p) => p >= 0 && p < this.text.length && /[\p{L}\p{N}]/u.test(this.text[p]);
        if (inside >= to || /\s/.test(this.text[inside]) || (c === '_' && word(i - 1))) {
            return {next: i, keep: n};
        }
        let tries = 100;  // of marks that close nothing: "*a *a *a" must not take quadratic time
        for (let end = this.find(mark, inside, to); end >= 0 && tries;
             end = this.find(mark, end + 1, to)) {
            tries -= 1;
            const longer = n < 3 && (this.text[end + n] === c || this.text[end - 1] === c);
            if (/\s/.test(this.text[end - 1]) || end === inside || longer) {
                if (longer) end += this.run(end, to) - 1;
                continue;
            }
            if (c === '_' && word(end + n)) continue;
            const children = this.read(inside, end, depth + 1);
            const node = {kind: c === '~' ? 'del' : ['em', 'strong', 'both'][n - 1], children};
            return {node, next: end + n};
        }
        return {next: i, keep: n};
    }

    link(i, to, depth) {
        const end = this.find('](', i + 1, to);
        const close = end < 0 ? -1 : this.find(')', end + 2, to);
        if (close < 0 || this.text.slice(i + 1, end).includes('[')) return null;
        const href = web(this.text.slice(end + 2, close).trim().split(/\s/)[0]);
        if (!href) return null;
        return {
            node: {kind: 'link', href, children: this.read(i + 1, end, depth + 1)},
            next: close + 1
        };
    }

    address(i, to) {
        if (i > 0 && /[\p{L}\p{N}]/u.test(this.text[i - 1])) return null;
        ADDRESS.lastIndex = i;
        const found = ADDRESS.exec(this.text.slice(0, to));
        const text = found && found[0].replace(/[.,;:!?*_~)\]]+$/, '');
        const href = text && web(text);
        if (!href) return null;
        const children = [{kind: 'text', text, from: i}];
        return {node: {kind: 'link', href, children}, next: i + text.length};
    }
}

// The address if it leads to the web, else null: javascript: and data: are no links.
function web(text) {
    try {
        const {protocol, href} = new URL(text);
        return protocol === 'http:' || protocol === 'https:' ? href : null;
    } catch {
        return null;
    }
}

// --- To nodes --------------------------------------------------------------------------------

// With `words`, each word is a span that knows its place in the source: `place` of a position in
// the block's text, of which `text` begins at `from`. A word never goes over the end of a line.
function addText(parent, text, from, place, words) {
    if (!words) {
        parent.append(text);
        return;
    }
    let done = 0;
    for (const found of text.matchAll(WORDS)) {
        if (found.index > done) parent.append(text.slice(done, found.index));
        const span = make('span', {className: 'w', tabIndex: -1}, found[0]);
        const at = place(from + found.index);
        span.dataset.at = at;
        span.dataset.end = at + found[0].length;
        parent.append(span);
        done = found.index + found[0].length;
    }
    if (done < text.length) parent.append(text.slice(done));
}

function addInline(parent, nodes, place, words) {
    for (const node of nodes) {
        if (node.kind === 'text')
            addText(parent, node.text, node.from, place, words);
        else if (node.kind === 'break')
            parent.append(make('br'));
        else if (node.kind === 'code') {
            const code = make('code');
            addText(code, node.text, node.from, place, words);
            parent.append(code);
        } else if (node.kind === 'link') {
            const {href} = node;
            const link = make('a', {href, target: '_blank', rel: 'noopener noreferrer'});
            addInline(link, node.children, place, words);
            parent.append(link);
        } else {
            const outer = make(node.kind === 'both' ? 'strong' : node.kind);
            const inner = node.kind === 'both' ? outer.appendChild(make('em')) : outer;
            addInline(inner, node.children, place, words);
            parent.append(outer);
        }
    }
    return parent;
}

function addLines(parent, lines, words) {
    const inline = new Inline(lines);
    return addInline(parent, inline.read(0, inline.text.length), inline.place, words);
}

function codeBlock(block, words) {
    const code = make('code');
    block.lines.forEach((line, i) => {
        addText(code, line.text, line.at, (at) => at, words);
        if (i + 1 < block.lines.length) code.append('\n');
    });
    const copy = iconButton('copy', 'Copy the code', async () => {
        try {
            await navigator.clipboard.writeText(code.textContent);
            say('Copied.');
            copy.dataset.done = '';
            setTimeout(() => delete copy.dataset.done, 1200);
        } catch {
            say('The browser did not allow copying.');
        }
    });
    const language = block.language || 'text';
    const head = make('div', {className: 'code-head'}, make('span', {}, language), copy);
    const pre = make('pre', {tabIndex: 0}, code);
    pre.setAttribute('role', 'group');
    pre.setAttribute('aria-label', `Code, ${language}`);
    return make('div', {className: 'code'}, head, pre);
}

function tableOf(block, words) {
    const row = (found, tag) =>
        make('tr', {}, ...found.map((c) => addLines(make(tag), [c], words)));
    const head = make('thead', {}, row(block.head, 'th'));
    const body = make('tbody', {}, ...block.rows.map((r) => row(r, 'td')));
    // A wide table scrolls, which must be possible by keyboard, too.
    const outer =
        make('div', {className: 'wide-table', tabIndex: 0}, make('table', {}, head, body));
    outer.setAttribute('role', 'group');
    outer.setAttribute('aria-label', 'Table');
    return outer;
}

function listOf(block, words) {
    const element = make(block.ordered ? 'ol' : 'ul');
    if (block.ordered && block.start !== 1) element.start = block.start;
    for (const item of block.items) {
        const li = make('li');
        for (const inner of item) {
            // Items of a tight list stand without paragraphs.
            if (inner.kind === 'paragraph' && !block.loose)
                addLines(li, inner.lines, words);
            else
                li.append(node(inner, words));
        }
        element.append(li);
    }
    return element;
}

function node(block, words) {
    switch (block.kind) {
        case 'code':
            return codeBlock(block, words);
        case 'rule':
            return make('hr');
        case 'table':
            return tableOf(block, words);
        case 'list':
            return listOf(block, words);
        case 'quote':
            return make('blockquote', {}, ...block.blocks.map((b) => node(b, words)));
        // The page has an h1 and each answer lies below it: headings of answers begin at h3.
        case 'heading':
            return addLines(make(`h${Math.min(block.level + 2, 6)}`), block.lines, words);
        default:
            return addLines(make('p'), block.lines, words);
    }
}

// An answer in `parent` that may grow.
export class Rendered {
    constructor(parent, words) {
        this.parent = parent;
        this.words = words;
        this.kept = [];
    }

    show(source) {
        const found = parse(source);
        let same = 0;
        while (same < Math.min(found.length, this.kept.length)) {
            const old = this.kept[same];
            const {at, end} = found[same];
            if (old.at !== at || old.text !== source.slice(at, end)) break;
            same += 1;
        }
        for (const old of this.kept.splice(same)) old.node.remove();
        for (const block of found.slice(same)) {
            const text = source.slice(block.at, block.end);
            const element = node(block, this.words);
            this.parent.append(element);
            this.kept.push({at: block.at, text, node: element});
        }
    }
}

// The same for a text without marks: line by line, so that a long one can grow.
export class PlainText {
    constructor(parent, words) {
        this.parent = parent;
        this.words = words;
        this.kept = [];
    }

    show(source) {
        const lines = source.match(/[^\n]*\n|[^\n]+$/g) || [];
        let same = 0;
        let at = 0;
        while (same < lines.length && this.kept[same]?.text === lines[same]) {
            at += lines[same].length;
            same += 1;
        }
        for (const old of this.kept.splice(same)) old.node.remove();
        for (const text of lines.slice(same)) {
            const node = make('span');
            addText(node, text, at, (place) => place, this.words);
            this.parent.append(node);
            this.kept.push({text, node});
            at += text.length;
        }
    }
}
