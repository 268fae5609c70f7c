// A small Markdown renderer. It builds nodes, so nothing in an answer can become markup.
//
// `parse` gives blocks whose text knows its place in the source; hovering over a word needs that to
// find the word's tokens. `Rendered` keeps the blocks of an answer that grows: all but the last
// blocks stay as they are, so a long answer costs no more per token than a short one. While it
// grows its end is read as if all that is open were closed there (`open`): nothing jumps when it
// closes.

import {iconButton, make, say} from '../dom.js';

import {colour} from './colours.js';
import {Inline, REFERENCE} from './inline.js';
import {formula} from './math.js';

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const MARKER = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const ROW = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEPTH = 8;            // of quotes and lists in each other: deeper ones are plain text
const FORMULA_LINES = 200;  // of a formula
// The first signs of a list's item, a heading, a quote or a line, without what follows.
const BEGINNING = /^\s*(?:[-*+_]{1,2}|\d{1,2}[.)]?|#{1,6}|>)\s*$/;
// Where scripts have no spaces between words, each character is one.
const DENSE = String.raw`\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}`;
const WORDS = new RegExp(`[${DENSE}]|[^\\s${DENSE}]+`, 'gu');

const indent = (text) => text.length - text.trimStart().length;
const cut = (line, n) => ({text: line.text.slice(n), at: line.at + n});

// open: more may come.
export function parse(source, open = false) {
    const lines = [];
    let at = 0;
    for (const text of source.split('\n')) {
        lines.push({text: text.endsWith('\r') ? text.slice(0, -1) : text, at});
        at += text.length + 1;
    }
    // A line that has just begun belongs to nothing yet.
    if (!lines.at(-1).text) lines.pop();
    if (open && lines.length && BEGINNING.test(lines.at(-1).text) &&
        (lines.length > 1 || !/\d/.test(lines[0].text)))
        lines.pop();
    return blocks(lines, 0, open);
}

function blocks(lines, depth, open) {
    const found = [];
    let i = 0;
    while (i < lines.length) {
        if (!lines[i].text.trim()) {
            i += 1;
            continue;
        }
        const block = fence(lines, i, open) || leaf(lines, i) || formulaBlock(lines, i, open) ||
            table(lines, i, open) ||
            (depth < DEPTH && (quote(lines, i, depth, open) || list(lines, i, depth, open))) ||
            paragraph(lines, i, depth, open);
        const last = lines[block.next - 1];
        const grows = open && block.next === lines.length;
        found.push({...block, open: grows, at: lines[i].at, end: last.at + last.text.length});
        i = block.next;
    }
    return found;
}

function fence(lines, i, grows) {
    const open = FENCE.exec(lines[i].text);
    // More backticks in the line: that is code inside a sentence.
    if (!open || (open[1][0] === '`' && lines[i].text.includes('`', open[0].length))) return null;
    const close = new RegExp(`^ {0,3}${open[1][0]}{${open[1].length},}\\s*$`);
    const strip = indent(lines[i].text);
    let next = i + 1;
    while (next < lines.length && !close.test(lines[next].text)) next += 1;
    const body = lines.slice(i + 1, next).map((l) => cut(l, Math.min(strip, indent(l.text))));
    // Half of the closing line.
    const half = grows && next === lines.length && body.length &&
        new RegExp(`^ {0,3}${open[1][0]}+$`).test(body.at(-1).text);
    if (half) body.pop();
    const guessed = grows && next === lines.length;  // it is not closed
    next = Math.min(next + 1, lines.length);
    return {kind: 'code', language: open[2], lines: body, next, guessed};
}

// A formula on lines of its own.
function formulaBlock(lines, i, open) {
    const begin = /^ {0,3}(\$\$|\\\[)/.exec(lines[i].text);
    if (!begin) return null;
    const mark = begin[1] === '$$' ? /(?<!\\)\$\$/ : /(?<!\\)\\\]/;
    const stop = Math.min(lines.length, i + FORMULA_LINES);
    const body = [];
    for (let next = i; next < stop; next++) {
        const text = next > i ? lines[next].text : lines[i].text.slice(begin[0].length);
        const end = mark.exec(text);
        body.push(end ? text.slice(0, end.index) : text);
        if (!end) continue;
        const after = text.slice(end.index + 2).trim();
        const source = body.join('\n');
        if (!/^[.,;:]?$/.test(after) || !source.trim()) return null;
        if (begin[1] !== '$$' && REFERENCE.test(source)) return null;
        return {kind: 'formula', text: source + after, next: next + 1};
    }
    if (!open || stop < lines.length) return null;
    const text = body.join('\n').replace(/[$\\]$/, '');
    return {kind: 'formula', text, next: stop, guessed: true};
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

function table(lines, i, open = false) {
    if (open && i + 2 >= lines.length && /^\s*\|/.test(lines[i].text)) {
        // The head, perhaps with a part of the line below it.
        const below = lines[i + 1]?.text ?? '';
        if (/^[\s|:-]*$/.test(below))
            return {
                kind: 'table',
                head: cells(lines[i]),
                rows: [],
                next: lines.length,
                guessed: true
            };
    }
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

function quote(lines, i, depth, open) {
    if (!QUOTE.test(lines[i].text)) return null;
    const inner = [];
    let next = i;
    for (; next < lines.length; next++) {
        const mark = QUOTE.exec(lines[next].text);
        if (!mark && (!lines[next].text.trim() || starts(lines, next))) break;
        inner.push(mark ? cut(lines[next], mark[0].length) : lines[next]);
    }
    return {kind: 'quote', blocks: blocks(inner, depth + 1, open && next === lines.length), next};
}

function list(lines, i, depth, open) {
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
        items.push(blocks(inner, depth + 1, open && next === lines.length));
    }
    const ordered = /\d/.test(first[2]);
    return {kind: 'list', ordered, start: parseInt(first[2], 10), items, loose, next};
}

// Whether a line begins a block that ends a paragraph before it.
function starts(lines, i) {
    const {text} = lines[i];
    return FENCE.test(text) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text);
}

function paragraph(lines, i, depth, open) {
    let next = i + 1;
    for (; next < lines.length; next++) {
        const {text} = lines[next];
        const marker = depth < DEPTH && MARKER.test(text) && indent(text) < 4;
        if (!text.trim() || marker || starts(lines, next)) break;
        if (table(lines, next, open) || formulaBlock(lines, next, open)) break;
    }
    const inner = lines.slice(i, next).map((l) => cut(l, indent(l.text)));
    return {kind: 'paragraph', lines: inner, next};
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
        } else if (node.kind === 'formula') {
            parent.append(formula(node.text, node.display, node.open));
        } else if (node.kind === 'half') {
            addInline(parent, node.children, place, words);
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

// Adds the text of lines. how: {words: are words elements, guessed: was anything shown as closed}.
function addLines(parent, lines, how, open = false) {
    const inline = new Inline(lines, open);
    addInline(parent, inline.read(0, inline.text.length), inline.place, how.words);
    how.guessed ||= inline.guessed;
    return parent;
}

function codeBlock(block, {words}) {
    const code = make('code');
    block.lines.forEach((line, i) => {
        addText(code, line.text, line.at, (at) => at, words);
        if (i + 1 < block.lines.length) code.append('\n');
    });
    if (!block.guessed) colour(code, block.language);
    const copy = iconButton('copy', 'Copy the code', async () => {
        try {
            const shown = copy.closest('.code').querySelector('code');  // it may have grown since
            await navigator.clipboard.writeText(shown.textContent);
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

function tableOf(block, how) {
    const row = (found, tag, open) => make(
        'tr', {},
        ...found.map((c, k) => addLines(make(tag), [c], how, open && k + 1 === found.length)));
    const {head: names, rows, open} = block;
    const head = make('thead', {}, row(names, 'th', open && !rows.length));
    const body =
        make('tbody', {}, ...rows.map((r, k) => row(r, 'td', open && k + 1 === rows.length)));
    // A wide table scrolls, which must be possible by keyboard, too.
    const outer =
        make('div', {className: 'wide-table', tabIndex: 0}, make('table', {}, head, body));
    outer.setAttribute('role', 'group');
    outer.setAttribute('aria-label', 'Table');
    return outer;
}

function listOf(block, how) {
    const element = make(block.ordered ? 'ol' : 'ul');
    if (block.ordered && block.start !== 1) element.start = block.start;
    for (const item of block.items) {
        const li = make('li');
        for (const inner of item) {
            // Items of a tight list stand without paragraphs.
            if (inner.kind === 'paragraph' && !block.loose)
                addLines(li, inner.lines, how, inner.open);
            else
                li.append(node(inner, how));
        }
        element.append(li);
    }
    return element;
}

function node(block, how) {
    how.guessed ||= Boolean(block.guessed);
    switch (block.kind) {
        case 'code':
            return codeBlock(block, how);
        case 'formula':
            return formula(block.text, true, block.open);
        case 'rule':
            return make('hr');
        case 'table':
            return tableOf(block, how);
        case 'list':
            return listOf(block, how);
        case 'quote':
            return make('blockquote', {}, ...block.blocks.map((b) => node(b, how)));
        // The page has an h1 and each answer lies below it: headings of answers begin at h3.
        case 'heading':
            return addLines(make(`h${Math.min(block.level + 2, 6)}`), block.lines, how, block.open);
        default:
            return addLines(make('p'), block.lines, how, block.open);
    }
}

// Makes `old` like `fresh` and keeps what is the same from its beginning on: a code block that
// grows keeps its place when scrolled, a list its items.
function morph(old, fresh) {
    for (const {name} of [...old.attributes])
        if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const {name, value} of fresh.attributes)
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    let [a, b] = [old.firstChild, fresh.firstChild];
    while (a && b && a.isEqualNode(b)) [a, b] = [a.nextSibling, b.nextSibling];
    if (a && b && a.nodeName === b.nodeName) {
        const next = [a.nextSibling, b.nextSibling];
        if (a.nodeType === Node.ELEMENT_NODE)
            morph(a, b);
        else
            a.data = b.data;
        [a, b] = next;
    }
    while (a) {
        const next = a.nextSibling;
        a.remove();
        a = next;
    }
    while (b) {
        const next = b.nextSibling;
        old.append(b);
        b = next;
    }
}

// An answer in `parent` that may grow.
export class Rendered {
    constructor(parent, words) {
        this.parent = parent;
        this.words = words;
        this.kept = [];
    }

    // open: more may come.
    show(source, open = false) {
        const found = parse(source, open);
        let same = 0;
        while (same < Math.min(found.length, this.kept.length)) {
            const old = this.kept[same];
            const block = found[same];
            if (old.at !== block.at || old.text !== source.slice(block.at, block.end)) break;
            if (old.guessed && !block.open) break;
            same += 1;
        }
        const changed = this.kept.splice(same);
        for (const block of found.slice(same)) {
            const text = source.slice(block.at, block.end);
            const how = {words: this.words, guessed: false};
            const fresh = node(block, how);
            const old = changed.shift()?.node;
            if (old?.nodeName === fresh.nodeName && old.className === fresh.className) {
                morph(old, fresh);
                this.kept.push({at: block.at, text, node: old, guessed: how.guessed});
                continue;
            }
            if (old)
                old.replaceWith(fresh);
            else
                this.parent.append(fresh);
            this.kept.push({at: block.at, text, node: fresh, guessed: how.guessed});
        }
        for (const old of changed) old.node.remove();
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
