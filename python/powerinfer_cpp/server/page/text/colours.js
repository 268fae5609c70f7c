// Colours of code. The server says of what kinds its parts are, by Pygments. The text stays the
// page's own, and kinds are those of a list: nothing of what the server says can become markup.

import {make} from '../dom.js';

const KINDS = new Set(
    ['comment', 'keyword', 'type', 'name', 'string', 'number', 'meta', 'inserted', 'deleted']);
const LONGEST = 64 << 10;  // characters; the server refuses more
const REMEMBERED = 256;    // codes

const known = new Map();  // language and code -> {number, spans: null until they are there}
let ask = null;
let many = 0;
let last = Promise.resolve();  // one request at a time

// request: of (language, code), gives [kind, length] of its parts, or null.
export function colourWith(request) { ask = request; }

// Colours the code of an element that does not grow any more, at once or when the server answered.
// It is rendered several times: only the first asks.
export function colour(element, language) {
    const code = element.textContent;
    if (!ask || !language || !code.trim() || code.length > LONGEST) return;
    const key = `${language}\n${code}`;
    let found = known.get(key);
    if (!found) {
        found = {number: many += 1, spans: null};
        known.set(key, found);
        if (known.size > REMEMBERED) known.delete(known.keys().next().value);
        last = last.then(() => learn(key, language, code, found));
    }
    // By its number: until the answer is here the element may have been exchanged for its like.
    element.dataset.code = found.number;
    if (found.spans) paint(element, found.spans);
}

async function learn(key, language, code, found) {
    try {
        const spans = await ask?.(language, code);
        if (!fit(spans, code)) return;
        found.spans = spans;
        for (const element of document.querySelectorAll(`code[data-code="${found.number}"]`))
            paint(element, spans);
    } catch (error) {
        known.delete(key);                                       // the next time it may work
        if ([404, 405, 501].includes(error.status)) ask = null;  // an older server
    }
}

function fit(spans, code) {
    if (!Array.isArray(spans)) return false;
    let left = code.length;
    for (const span of spans) {
        if (!Array.isArray(span) || !Number.isInteger(span[1]) || span[1] < 1) return false;
        left -= span[1];
    }
    return left === 0;
}

// Cuts the texts within an element, words or not, where spans begin.
function paint(element, spans) {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) texts.push(walker.currentNode);
    let k = 0;
    let left = spans[0][1];
    for (const node of texts) {
        const parts = [];
        for (let at = 0; at < node.length;) {
            const n = Math.min(left, node.length - at);
            const piece = node.data.slice(at, at + n);
            const coloured = KINDS.has(spans[k][0]) && piece.trim();
            parts.push(coloured ? make('span', {className: `k-${spans[k][0]}`}, piece) : piece);
            at += n;
            left -= n;
            if (!left && k + 1 < spans.length) left = spans[k += 1][1];
        }
        if (parts.some((part) => part instanceof Node)) node.replaceWith(...parts);
    }
}
