// What stands inside a line: emphasis, code, links, formulas. Nodes know their places in the text.
//
// With `open` more may come: what begins is then shown as if it ended here, so that no mark stands
// in the text until its partner comes. `guessed` tells whether that changed anything.

const DEPTH = 8;  // of marks in each other
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const ADDRESS = /https?:\/\/[^\s<>"'`]+/y;

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

// Formulas' marks, their partners, and whether the formula stands alone.
const FORMULAS =
    [['$$', '$$', true], ['\\[', '\\]', true], ['\\(', '\\)', false], ['$', '$', false]];
const FORMULA_SIGN = /[\\^_={}]/;
// What stands in \[ \] without being a formula: a number of a reference, a word.
export const REFERENCE = /^\s*\w{1,20}\s*$/;

export class Inline {
    // open: more may come at the end of the last line.
    constructor(lines, open = false) {
        const {text, place} = joined(lines);
        this.text = text;
        this.place = place;
        this.open = open;
        this.guessed = false;
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

    // Does what begins before `to` perhaps go on?
    grows(to) { return this.open && to === this.text.length; }

    guess(found) {
        this.guessed = true;
        return found;
    }

    // What begins at i, and where it ends; null for plain text.
    at(i, to, depth) {
        const c = this.text[i];
        if (c === '$' || (c === '\\' && '(['.includes(this.text[i + 1] || ' '))) {
            const found = this.formula(i, to);
            if (found) return found;
        }
        if (c === '\\' && i + 1 === to && this.grows(to)) return this.guess({next: to});
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

    formula(i, to) {
        const [mark, partner, display] = FORMULAS.find(([m]) => this.text.startsWith(m, i));
        const from = i + mark.length;
        let end = this.find(partner, from, to);
        while (end >= 0 && this.escaped(end)) end = this.find(partner, end + 1, to);
        const grows = end < 0 && this.grows(to);
        const body = this.text.slice(from, end < 0 ? to : end);
        if (mark === '$' ? !this.dollars(i, body, end, grows) : end < 0 && !grows) return null;
        if (end >= 0 && (!body.trim() || (mark === '\\[' && REFERENCE.test(body)))) return null;
        const text = grows ? body.replace(/[$\\]$/, '') : body;
        const found = {
            node: text.trim() ? {kind: 'formula', text, display, open: grows} : null,
            next: grows ? to : end + partner.length,
        };
        return grows ? this.guess(found) : found;
    }

    // Is the sign at `at` preceded by a backslash that is not escaped itself?
    escaped(at) {
        let n = 0;
        while (this.text[at - 1 - n] === '\\') n += 1;
        return n % 2 === 1;
    }

    // Whether single dollars enclose a formula and not two prices.
    dollars(i, body, end, grows) {
        if (/[\p{L}\p{N}$]/u.test(this.text[i - 1] || ' ')) return false;
        if (grows)
            return !body || /^[A-Za-z]$/.test(body) ||
                (/^[^\s\d]/.test(body) && FORMULA_SIGN.test(body));
        if (end < 0 || body.includes('\n\n')) return false;
        if (!/^\s|\s$/.test(body)) return !/\d/.test(this.text[end + 1] || '');
        return FORMULA_SIGN.test(body) && /^\s/.test(body) && /\s$/.test(body);
    }

    code(i, to) {
        const n = this.run(i, to);
        const mark = '`'.repeat(n);
        if (i + n === to && this.grows(to)) return this.guess({next: to});
        let end = this.find(mark, i + n, to);
        while (end >= 0 && this.run(end, to) !== n)
            end = this.find(mark, end + this.run(end, to), to);
        if (end < 0 && !this.grows(to)) return {next: i, keep: n};
        if (end < 0) {
            const text = this.text.slice(i + n, to).replace(/`+$/, '').replace(/\n/g, ' ');
            return this.guess({node: {kind: 'code', text, from: i + n}, next: to});
        }
        let [a, b] = [i + n, end];
        const body = this.text.slice(a, b);
        if (body.startsWith(' ') && body.endsWith(' ') && body.trim()) [a, b] = [a + 1, b - 1];
        const text = this.text.slice(a, b).replace(/\n/g, ' ');
        return {node: {kind: 'code', text, from: a}, next: end + n};
    }

    emphasis(i, to, depth) {
        const c = this.text[i];
        const n = Math.min(this.run(i, to), 3);
        if (c === '~' && n !== 2 && !(n === 1 && i + 1 === to)) return {next: i, keep: n};
        const mark = c.repeat(n);
        const kind = c === '~' ? 'del' : ['em', 'strong', 'both'][n - 1];
        const inside = i + n;
        // Between letters an underscore is part of a name, as in max_tokens.
        const word = (p) => p >= 0 && p < this.text.length && /[\p{L}\p{N}]/u.test(this.text[p]);
        if (c === '_' && word(i - 1)) return {next: i, keep: n};
        // The first or the last half of a mark.
        if (i + this.run(i, to) === to && this.grows(to)) return this.guess({next: to});
        if (inside >= to || /\s/.test(this.text[inside])) return {next: i, keep: n};
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
            return {node: {kind, children}, next: end + n};
        }
        // Between letters a star is a product more often than a beginning.
        if (!this.grows(to) || /[A-Za-z0-9]/.test(this.text[i - 1] || ' '))
            return {next: i, keep: n};
        const children = this.read(inside, to, depth + 1);
        return this.guess({node: {kind, children}, next: to});
    }

    link(i, to, depth) {
        const end = this.find('](', i + 1, to);
        const close = end < 0 ? -1 : this.find(')', end + 2, to);
        if (close < 0 && this.grows(to)) return this.halfLink(i, to, depth);
        if (close < 0 || this.text.slice(i + 1, end).includes('[')) return null;
        const href = web(this.text.slice(end + 2, close).trim().split(/\s/)[0]);
        if (!href) return null;
        return {
            node: {kind: 'link', href, children: this.read(i + 1, end, depth + 1)},
            next: close + 1
        };
    }

    // A link of which the end is missing: its words, without an address.
    halfLink(i, to, depth) {
        const rest = this.text.slice(i + 1, to);
        const half = /^([^[\]\n]{0,200})(?:$|\]$|\]\([^\s)]{0,2000}$)/.exec(rest);
        if (!half) return null;
        const children = this.read(i + 1, i + 1 + half[1].length, depth + 1);
        return this.guess({node: {kind: 'half', children}, next: to});
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
