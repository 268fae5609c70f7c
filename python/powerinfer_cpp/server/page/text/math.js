// Formulas: the part of LaTeX that answers use, as MathML, which browsers draw by themselves.
//
// `parseMath` gives a tree of plain objects {tag, kids or text, attributes}, or null for what it
// does not understand: then the reader sees the source. With `open` the source may end anywhere, as
// it does while an answer comes.

import {make} from '../dom.js';

import {ACCENTS, DELIMITERS, FONTS, FUNCTIONS, inAlphabet, INTEGRALS, LARGE, LETTERS, LIMITS, LINES, OPERATORS, SPACED_LIMITS, SPACES,} from './symbols.js';

const NAMESPACE = 'http://www.w3.org/1998/Math/MathML';
const LONGEST = 20000;  // characters of a formula
const DEPTH = 60;       // of groups in each other
const TOKEN = /\\(?:(?:operatorname|hspace|tag)\*|[A-Za-z]+|[\s\S]|$)|\d+(?:\.\d+)?|\s+|[\s\S]/gu;
const FRACTIONS = new Set(['frac', 'dfrac', 'tfrac', 'cfrac']);
const TEXTS = new Set([
    'text', 'textrm', 'textbf', 'textit', 'textsf', 'texttt', 'textnormal', 'mbox', 'hbox', 'textup'
]);
const SIZES = new Map([['big', '1.2em'], ['Big', '1.8em'], ['bigg', '2.4em'], ['Bigg', '3em']]);
// What says how to set something: nothing is lost without it.
const SILENT = new Set([
    'displaystyle', 'textstyle', 'scriptstyle', 'scriptscriptstyle', 'nonumber', 'notag', 'hline',
    'limits', 'nolimits', 'centering'
]);
const SILENT_WITH_ARGUMENT = new Set(['label', 'color', 'vspace', 'tag*']);
// One argument that is shown as it is.
const PLAIN = new Set([
    'mathop', 'mathbin', 'mathrel', 'mathord', 'mathopen', 'mathclose', 'mathstrut', 'boxed',
    'fbox', 'ensuremath', 'mathpunct', 'smash'
]);
// Surroundings: their delimiters, the alignment of columns, and whether they are set large.
const TABLES = {
    'matrix': ['', ''],
    'smallmatrix': ['', ''],
    'pmatrix': ['(', ')'],
    'bmatrix': ['[', ']'],
    'Bmatrix': ['{', '}'],
    'vmatrix': ['|', '|'],
    'Vmatrix': ['‖', '‖'],
    'array': ['', ''],
    'cases': ['{', '', 'll'],
    'rcases': ['', '}', 'll'],
    'dcases': ['{', '', 'll', true],
    'aligned': ['', '', 'rl', true],
    'align': ['', '', 'rl', true],
    'alignedat': ['', '', 'rl', true],
    'alignat': ['', '', 'rl', true],
    'split': ['', '', 'rl', true],
    'eqnarray': ['', '', 'rcl', true],
    'gathered': ['', '', 'c', true],
    'gather': ['', '', 'c', true],
    'equation': ['', '', 'c', true],
    'multline': ['', '', 'c', true],
    'displaymath': ['', '', 'c', true],
    'math': ['', '', 'c', true],
};

class NotUnderstood extends Error {}

const leaf = (tag, text, attributes = {}) => ({tag, text, attributes});
const branch = (tag, kids, attributes = {}) => ({tag, kids, attributes});
// Several nodes as one.
const row = (kids) => (kids.length === 1 ? kids[0] : branch('mrow', kids));
const space = (em) => branch('mspace', [], {width: `${em}em`});
const still = (text) => leaf('mo', text, {stretchy: 'false', lspace: '0', rspace: '0'});
const fence = (text) => leaf('mo', text, {fence: 'true', stretchy: 'true'});

class Parser {
    constructor(source, open) {
        this.tokens = source.match(TOKEN) || [];
        this.at = 0;
        this.open = open;
        this.depth = 0;
        this.font = 'italic';
    }

    get next() { return this.tokens[this.at]; }
    get ended() { return this.at >= this.tokens.length; }

    take() { return this.tokens[this.at++]; }

    skipSpace() {
        while (!this.ended && /^\s+$/.test(this.next)) this.at += 1;
    }

    // The end came too early: a mistake, unless more may come.
    early() {
        if (!this.open) throw new NotUnderstood('the formula ends too early');
    }

    enter(work) {
        if (++this.depth > DEPTH) throw new NotUnderstood('too deep');
        const found = work();
        this.depth -= 1;
        return found;
    }

    // Nodes up to a token for which `stops` holds, which stays.
    row(stops) {
        const kids = [];
        for (;;) {
            this.skipSpace();
            if (this.ended || stops(this.next)) break;
            const one = this.enter(() => this.scripted());
            if (!one) continue;
            const before = kids.at(-1);
            if (one.named && before && ['mi', 'mn'].includes(before.tag)) kids.push(space(0.167));
            kids.push(one);
            // "sin x" has a space that "sin(x)" has not.
            this.skipSpace();
            if (one.named && !this.ended && !stops(this.next) &&
                !/^[)(\][|,.;^_}&]$|^\\(?:left|right|big)/.test(this.next))
                kids.push(space(0.167));
        }
        return kids;
    }

    // --- Bases and scripts --------------------------------------------------------------------

    scripted() {
        const base = /^[\^_']$/.test(this.next) ? branch('mrow', []) : this.atom();
        if (!base) return null;
        let [below, above, primes] = [null, null, 0];
        let limits = base.limits;
        for (;;) {
            this.skipSpace();
            if (this.next === '\'') {
                this.take();
                primes += 1;
            } else if (this.next === '^' && !above) {
                this.take();
                above = this.argument();
            } else if (this.next === '_' && !below) {
                this.take();
                below = this.argument();
            } else if (this.next === '\\limits' || this.next === '\\nolimits') {
                limits = this.take() === '\\limits';
            } else
                break;
        }
        if (primes) {
            const marks = leaf('mo', ['′', '″', '‴'][Math.min(primes, 3) - 1]);
            above = above ? row([marks, above]) : marks;
        }
        if (/^[\^_]$/.test(this.next || '')) throw new NotUnderstood('two scripts');
        if (!below && !above) return base;
        const kids = [base, below, above].filter(Boolean);
        const both = below && above;
        const tag = limits ? (both      ? 'munderover' :
                                  below ? 'munder' :
                                          'mover') :
                             (both      ? 'msubsup' :
                                  below ? 'msub' :
                                          'msup');
        return {...branch(tag, kids), named: base.named};
    }

    // What a command applies to: a group, a command or one sign.
    argument() {
        this.skipSpace();
        if (this.ended) {
            this.early();
            return branch('mrow', []);
        }
        if (/^[}&^_]$/.test(this.next)) throw new NotUnderstood('an argument is missing');
        if (/^\d{2,}|^\d\./.test(this.next)) {
            // x^10 is x to the power of one, and a zero.
            const digits = this.take();
            this.tokens.splice(this.at, 0, digits.slice(1));
            return leaf('mn', digits[0]);
        }
        return this.enter(() => this.atom()) || branch('mrow', []);
    }

    group() {
        this.take();
        const {font} = this;
        const kids = this.row((token) => token === '}');
        if (this.take() !== '}') this.early();
        this.font = font;
        return row(kids);
    }

    // What stands in braces, as text.
    raw() {
        this.skipSpace();
        if (this.ended) {
            this.early();
            return '';
        }
        if (this.take() !== '{') throw new NotUnderstood('a brace is missing');
        let text = '';
        for (let depth = 1;;) {
            const token = this.take();
            if (token === undefined) {
                this.early();
                return text;
            }
            if (token === '{') depth += 1;
            if (token === '}' && --depth === 0) return text;
            text += token;
        }
    }

    // What stands in brackets, if anything does.
    option() {
        this.skipSpace();
        if (this.next !== '[') return null;
        this.take();
        const kids = this.row((token) => token === ']');
        if (this.take() !== ']') this.early();
        return row(kids);
    }

    atom() {
        const token = this.next;
        if (token === '{') return this.group();
        this.take();
        if (token[0] === '\\') return this.command(token.slice(1));
        if (/^\d/.test(token)) return leaf('mn', inAlphabet(token, this.font));
        if (/^\p{L}/u.test(token)) return this.letter(token);
        if (token === '~') return space(0.25);
        if (token === '&' || token === '}' || token === '$') throw new NotUnderstood(token);
        if (token === '-') return leaf('mo', '−');
        if (token === '*') return leaf('mo', '∗');
        if (/^[|()[\]/]$/.test(token)) return still(token);
        return leaf('mo', token);
    }

    letter(text) {
        if (/\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Hangul}/u.test(text))
            return leaf('mtext', text);
        const upright = this.font === 'upright' ? {mathvariant: 'normal'} : {};
        return leaf('mi', inAlphabet(text, this.font), upright);
    }

    // --- Commands -----------------------------------------------------------------------------

    command(name) {
        const simple = this.sign(name);
        if (simple) return simple;
        if (SPACES.has(name)) return space(SPACES.get(name));
        if (SILENT.has(name)) return null;
        if (SILENT_WITH_ARGUMENT.has(name)) {
            this.raw();
            return null;
        }
        if (FRACTIONS.has(name)) return this.fraction();
        if (FONTS.has(name)) return this.inFont(FONTS.get(name), name.length === 2);
        if (TEXTS.has(name)) return words(this.raw());
        if (ACCENTS.has(name)) return this.accent(name);
        if (LINES.has(name)) return branch('mrow', [this.argument()], {class: LINES.get(name)});
        if (name === 'underbrace')
            return {...branch('munder', [this.argument(), leaf('mo', '⏟')]), limits: true};
        if (PLAIN.has(name)) {
            const inner = this.argument();
            return /box/.test(name) ? branch('mrow', [inner], {class: 'boxed'}) : inner;
        }
        const size = /^(big|Big|bigg|Bigg)[lrm]?$/.exec(name);
        if (size) {
            const length = SIZES.get(size[1]);
            return leaf('mo', this.delimiter(), {minsize: length, maxsize: length});
        }
        return this.structure(name);
    }

    // Commands that are one sign.
    sign(name) {
        if (LETTERS.has(name)) {
            const text = LETTERS.get(name);
            const upright = /[^α-ωϵϑϖϱϕıȷ]/.test(text) ? {mathvariant: 'normal'} : {};
            return leaf('mi', inAlphabet(text, this.font), upright);
        }
        if (OPERATORS.has(name)) return leaf('mo', OPERATORS.get(name));
        if (LARGE.has(name)) return {...leaf('mo', LARGE.get(name)), limits: true};
        if (INTEGRALS.has(name)) return leaf('mo', INTEGRALS.get(name));
        if (FUNCTIONS.has(name)) return {...leaf('mi', name), named: true};
        if (LIMITS.has(name) || SPACED_LIMITS.has(name)) {
            const text = SPACED_LIMITS.get(name) || name;
            return {...leaf('mo', text, {movablelimits: 'true'}), limits: true, named: true};
        }
        if (name === '|') return still('‖');
        return DELIMITERS.has(name) && name !== '.' ? still(DELIMITERS.get(name)) : null;
    }

    structure(name) {
        switch (name) {
            case 'sqrt': {
                const degree = this.option();
                const inner = this.argument();
                return degree ? branch('mroot', [inner, degree]) : branch('msqrt', [inner]);
            }
            case 'binom':
            case 'dbinom':
            case 'tbinom': {
                const pair =
                    branch('mfrac', [this.argument(), this.argument()], {linethickness: '0'});
                return branch('mrow', [fence('('), pair, fence(')')]);
            }
            case 'left':
                return this.fenced();
            case 'begin':
                return this.surrounding(this.raw());
            case 'operatorname':
            case 'operatorname*':
                return {
                    ...leaf(
                        'mi', this.raw().replace(/\\[,;! ]|\s+/g, ' ').trim(),
                        {mathvariant: 'normal'}),
                    named: true,
                    limits: name.endsWith('*'),
                };
            case 'not': {
                const inner = this.argument();
                if (inner.text === undefined) throw new NotUnderstood('\\not');
                return {...inner, text: `${inner.text}\u0338`.normalize('NFC')};
            }
            case 'pmod':
            case 'mod':
            case 'pod': {
                const mod = name === 'pod' ? [] : [leaf('mi', 'mod'), space(0.333)];
                const inner = [...mod, this.argument()];
                return row(
                    [space(1), ...(name === 'mod' ? inner : [still('('), ...inner, still(')')])]);
            }
            case 'stackrel':
            case 'overset': {
                const above = this.argument();
                return branch('mover', [this.argument(), above]);
            }
            case 'underset': {
                const below = this.argument();
                return branch('munder', [this.argument(), below]);
            }
            case 'xrightarrow':
            case 'xleftarrow': {
                const below = this.option();
                const arrow = leaf('mo', name === 'xrightarrow' ? '→' : '←', {stretchy: 'true'});
                const above = this.argument();
                return below ? branch('munderover', [arrow, below, above]) :
                               branch('mover', [arrow, above]);
            }
            case 'substack':
                this.skipSpace();
                if (this.take() !== '{') this.early();
                return this.table('}', '', false);
            case 'textcolor':
                this.raw();
                return this.argument();
            case 'tag':
                return row([space(2), words(`(${this.raw()})`)]);
            case 'hspace':
            case 'hspace*':
                return space(Math.min(Math.max(parseFloat(this.raw()) || 0, -2), 20));
            case 'middle':
                return fence(this.delimiter());
            case '':
                this.early();
                return null;
            default:
                // Half a name at the end of what came so far.
                if (this.open && this.ended && /^[A-Za-z]+$/.test(name)) return null;
                throw new NotUnderstood(`\\${name}`);
        }
    }

    fraction() {
        const above = this.argument();
        return branch('mfrac', [above, this.argument()]);
    }

    // rest: the font holds up to the end of the group.
    inFont(font, rest) {
        const before = this.font;
        this.font = font;
        if (rest) return null;
        const inner = this.argument();
        this.font = before;
        return inner;
    }

    accent(name) {
        const [sign, grows] = ACCENTS.get(name);
        const inner = this.argument();
        const over =
            branch('mover', [inner, leaf('mo', sign, {stretchy: String(grows)})], {accent: 'true'});
        return {...over, limits: name === 'overbrace'};
    }

    delimiter() {
        this.skipSpace();
        if (this.ended) {
            this.early();
            return '';
        }
        const token = this.take();
        if (token === '\\' && this.ended) {
            this.early();
            return '';
        }
        const name = token === '\\|' ? token : token.replace(/^\\/, '');
        if (!DELIMITERS.has(name)) throw new NotUnderstood(`the delimiter ${token}`);
        return DELIMITERS.get(name);
    }

    fenced() {
        const kids = [fence(this.delimiter())];
        kids.push(...this.row((token) => token === '\\right' || token === '&' || token === '\\\\'));
        if (this.ended)
            this.early();
        else if (this.take() !== '\\right')
            throw new NotUnderstood('\\left without \\right');
        kids.push(fence(this.ended && this.open ? '' : this.delimiter()));
        return branch('mrow', kids.filter((kid) => kid.text !== ''));
    }

    // --- Tables -------------------------------------------------------------------------------

    surrounding(given) {
        const name = given.replace(/\*$/, '');
        if (!Object.hasOwn(TABLES, name)) {
            if (this.open && this.ended) return null;
            throw new NotUnderstood(`\\begin{${given}}`);
        }
        let [left, right, columns = 'c', large = false] = TABLES[name];
        if (name === 'array') columns = this.raw().replace(/[^lcr]/g, '') || 'c';
        if (name.startsWith('aligned') && name.endsWith('at') || name === 'alignat') this.raw();
        const table = this.table('\\end', columns, large);
        const cut = this.ended;
        if (!cut && this.raw() !== given && !(this.open && this.ended))
            throw new NotUnderstood('\\end of another');
        if (!left && !right) return table;
        return branch('mrow', [left && fence(left), table, right && fence(right)].filter(Boolean));
    }

    // Rows of cells up to a token, which is taken. columns: alignment, the last two are repeated.
    table(end, columns, large) {
        const rows = [[]];
        for (;;) {
            const cell = this.row((token) => [end, '&', '\\\\', '\\cr'].includes(token));
            rows.at(-1).push(row(cell));
            const token = this.take();
            if (token === undefined) {
                if (end) this.early();
                break;
            }
            if (token === end) break;
            if (token === '&') continue;
            rows.push([]);
            if (this.next === '[') this.option();  // more room between two rows
        }
        const empty = (cell) => cell.tag === 'mrow' && !cell.kids.length;
        while (rows.length > 1 && rows.at(-1).every(empty)) rows.pop();
        const align = (k) => columns[k] ||
            columns[(k - columns.length) % Math.min(2, columns.length) +
                    Math.max(0, columns.length - 2)];
        const attributes = large ? {displaystyle: 'true'} : {};
        return branch(
            'mtable',
            rows.map(
                (cells) => branch(
                    'mtr',
                    cells.map((cell, k) => branch('mtd', [cell], {class: align(k) || 'c'})))),
            attributes);
    }
}

// Text in a formula; MathML drops spaces at its ends.
function words(text) {
    const plain = text.replace(/\\([#$%&_{}])/g, '$1').replace(/\\[ ,;:]|~/g, ' ');
    return leaf('mtext', plain.replace(/^\s+|\s+$/g, '\u00a0'));
}

export function parseMath(source, open = false) {
    if (source.length > LONGEST) return null;
    const parser = new Parser(source, open);
    try {
        const table = parser.table('', 'c', true);
        const [first] = table.kids;
        return table.kids.length === 1 && first.kids.length === 1 ? first.kids[0].kids[0] : table;
    } catch (error) {
        if (error instanceof NotUnderstood) return null;
        throw error;
    }
}

function built({tag, kids, text, attributes}) {
    const element = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined)
        element.textContent = text;
    else
        element.append(...kids.map(built));
    return element;
}

// A formula as an element; its source in a box where it is not understood.
export function formula(source, display, open = false) {
    const tree = parseMath(source, open);
    const outer = make(display ? 'div' : 'span', {className: display ? 'math block' : 'math'});
    if (!tree) {
        outer.append(make('code', {className: 'tex'}, source.trim()));
        return outer;
    }
    const math = document.createElementNS(NAMESPACE, 'math');
    if (display) math.setAttribute('display', 'block');
    math.setAttribute('alttext', source.trim());
    math.append(built(tree.tag === 'mrow' ? tree : branch('mrow', [tree])));
    outer.append(math);
    return outer;
}
