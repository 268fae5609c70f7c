// Checks of the page that test_page.py runs inside it.

import {pretty} from '/answer.js';
import {layOut, Model} from '/layout.js';
import {Picture} from '/picture.js';
import {Cutter, Memory, parseFrame, together} from '/stream.js';
import {Rendered} from '/text/markdown.js';
import {formula, parseMath} from '/text/math.js';

const CONTROLS =
    'button, a[href], input, select, textarea, canvas, [tabindex="0"], dialog, fieldset';

// Controls without a name that a screen reader could say.
export function nameless() {
    return [...document.querySelectorAll(CONTROLS)]
        .filter((e) => {
            if (!e.checkVisibility() && !e.closest('dialog')) return false;
            const by = (e.getAttribute('aria-labelledby') || '').split(' ').filter(Boolean);
            const name = e.getAttribute('aria-label') ||
                by.map((id) => document.getElementById(id)?.textContent).join(' ') ||
                [...(e.labels || [])].map((label) => label.textContent).join(' ') ||
                e.querySelector('legend')?.textContent ||
                (['BUTTON', 'A'].includes(e.tagName) && e.textContent);
            return !name || !name.trim();
        })
        .map((e) => e.outerHTML.slice(0, 120));
}

// Text that is too pale for its ground (WCAG AA).
export function pale() {
    const probe = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
    const parse = (colour) => {
        probe.clearRect(0, 0, 1, 1);
        probe.fillStyle = colour;
        probe.fillRect(0, 0, 1, 1);
        return [...probe.getImageData(0, 0, 1, 1).data];
    };
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) =>
        0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const found = [];
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility() || e.disabled || e.closest('.unseen, .skip, noscript'))
            continue;
        let ground = e;
        while (ground.parentElement && parse(getComputedStyle(ground).backgroundColor)[3] < 255) {
            ground = ground.parentElement;
        }
        const [a, b] = [getComputedStyle(e).color, getComputedStyle(ground).backgroundColor].map(
            (c) => light(parse(c)));
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${e.outerHTML.slice(0, 100)}`);
    }
    return found;
}

// A text at once and letter by letter, also as one that grows, and its words whose place in the
// source is wrong.
export function render(source) {
    const show = (text, words) => {
        const parent = document.createElement('div');
        new Rendered(parent, words).show(text);
        return parent;
    };
    const grown = [false, true].map((open) => {
        const parent = document.createElement('div');
        const rendered = new Rendered(parent, false);
        for (let n = 0; n <= source.length; n++) rendered.show(source.slice(0, n), open);
        rendered.show(source);
        return parent.innerHTML;
    });
    const spans = [...show(source, true).querySelectorAll('.w')];
    const astray = spans.filter((s) => source.slice(s.dataset.at, s.dataset.end) !== s.textContent);
    return [show(source, false).innerHTML, ...grown, astray.map((s) => s.textContent)];
}

// A text of which more may come.
export function begun(source) {
    const parent = document.createElement('div');
    new Rendered(parent, false).show(source, true);
    return parent.innerHTML;
}

// What a text shows of these signs while it comes letter by letter.
export function marksSeen([source, marks]) {
    const parent = document.createElement('div');
    const rendered = new Rendered(parent, false);
    const seen = [];
    for (let n = 0; n <= source.length; n++) {
        rendered.show(source.slice(0, n), true);
        const found = marks.filter((mark) => parent.textContent.includes(mark));
        if (found.length) seen.push([source.slice(0, n).slice(-20), ...found]);
    }
    return seen;
}

// Lets a text grow in the page, and tells where a block that stands moved, changed or was made
// again; items of a list and lines of code count as blocks.
export function moved(source) {
    const parent = document.createElement('div');
    parent.className = 'body markdown';
    parent.style.width = '40rem';
    document.getElementById('messages').append(parent);
    const rendered = new Rendered(parent, true);
    const wrong = [];
    let before = [];
    for (let n = 1; n <= source.length; n += 3) {
        rendered.show(source.slice(0, n), true);
        const blocks = [...parent.children, ...parent.querySelectorAll('li, pre')];
        before.forEach(({element, top, height, html}) => {
            const {top: now, height: high} = element.getBoundingClientRect();
            const from = parent.getBoundingClientRect().top;
            if (!element.isConnected)
                wrong.push(`made again at ${n}: ${html.slice(0, 60)}`);
            else if (Math.abs(now - from - top) > 0.01 || Math.abs(high - height) > 0.01)
                wrong.push(`moved at ${n}: ${html.slice(0, 60)}`);
            else if (element.innerHTML !== html)
                wrong.push(`changed at ${n}: ${html.slice(0, 60)}`);
        });
        // All but what stands at the end, and what contains it.
        const from = parent.getBoundingClientRect().top;
        let end = parent;
        const growing = new Set();
        while ((end = end.lastElementChild)) growing.add(end);
        before = blocks.filter((element) => !growing.has(element)).map((element) => {
            const {top, height} = element.getBoundingClientRect();
            return {element, top: top - from, height, html: element.innerHTML};
        });
    }
    parent.remove();
    return [wrong, before.length];
}

// A formula's tree in short: f(g a) for elements, n:2 for leaves; null for what is not understood.
export function formulaTree(source) {
    const write = ({tag, text, kids}) =>
        (text !== undefined ? `${tag}:${text}` : `${tag}(${kids.map(write).join(' ')})`);
    const tree = parseMath(source);
    return tree && write(tree);
}

// Prefixes of a formula that are not understood although more may come.
export function formulaBreaks(source) {
    return Array.from({length: source.length + 1}, (_, n) => source.slice(0, n))
        .filter((part) => !parseMath(part, true));
}

export const prettied = pretty;

// Whether the browser draws a formula: its box, and those of a fraction's parts.
export function formulaBox() {
    const element = formula('\\frac{a+b+c}{2}', true);
    document.getElementById('messages').append(element);
    const box = (name) => element.querySelector(name).getBoundingClientRect();
    const [all, above, below] =
        [box('math'), box('mfrac > :first-child'), box('mfrac > :last-child')];
    element.remove();
    return {width: all.width, height: all.height, stacked: below.top >= above.bottom};
}

export function renderTime([source, open]) {
    const start = performance.now();
    new Rendered(document.createElement('div'), false).show(source, open);
    return performance.now() - start;
}

let seed = 1;

// Numbers that look random and are the same in every run.
function draw() {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
}

const someTiers = (n) =>
    Uint8Array.from({length: n}, () => Math.min(2, Math.floor(draw() ** 2 * 4)));

// What is wrong with the places of neurons, at first and after tiers moved.
export function layoutFaults() {
    // Neurons of each layer.
    const equal = (layers, n) => new Array(layers).fill(n);
    const shapes = [
        [equal(32, 14336), 1100, 280],
        [equal(8, 1376), 1100, 280],
        [equal(16, 8 * 1792), 1100, 280],
        [[1, ...equal(47, 128)], 1100, 280],
        [equal(32, 8), 1100, 280],
        [equal(94, 128), 1100, 280],
        [equal(2, 9), 1100, 280],
        [equal(3, 2 * 5), 340, 90],
        [equal(1, 1), 300, 80],
        [equal(130, 300), 320, 100],
        [[96, 40, 200, 96], 1100, 280],
        [[1000, ...equal(6, 8 * 700), 3000], 340, 90],
    ];
    const wrong = [];
    for (const [layer_units, width, height] of shapes) {
        const layers = layer_units.length;
        const n = layer_units.reduce((a, b) => a + b, 0);
        const what = `${layers} layers of ${layer_units[0]} and others`;
        const model = new Model({layers, layer_units, tiers: someTiers(n), bytes_per_unit: 1});
        wrong.push(...slotFaults(model, what), ...cellFaults(model, width, height, what));
        for (let round = 1; round < 5; round++) {
            const next = someTiers(n);
            model.move(model.tiers.map((tier, i) => (draw() < 0.9 ? tier : next[i])));
            const when = `${what}, moved ${round} times`;
            wrong.push(...slotFaults(model, when), ...cellFaults(model, width, height, when));
        }
    }
    return wrong;
}

// The layer of each neuron.
function layersOf(model) {
    const layer = [];
    for (let l = 0; l < model.layers; l++) {
        for (let i = 0; i < model.inLayer(l); i++) layer.push(l);
    }
    return layer;
}

// Each neuron has a slot of its own, and slots have no holes.
function slotFaults(model, what) {
    const taken = new Set(), layer = layersOf(model);
    for (let i = 0; i < model.total; i++) {
        const at = layer[i] * 3 + model.tiers[i];
        const key = `${at} ${model.slots[i]}`;
        if (taken.has(key) || model.slots[i] >= model.counts[at]) return [`${what}: slot ${key}`];
        taken.add(key);
    }
    return [];
}

// Each neuron's cell lies in its continent and layer, and cells hold all neurons.
function cellFaults(model, width, height, what) {
    const found = layOut(model, width, height);
    const {columns, rows, size, cell, at, tier, neurons, continents} = found;
    if (columns * size > width || rows * size > height) return [`${what}: larger than its room`];
    const layers = layersOf(model);
    for (let i = 0; i < model.total; i++) {
        const row = Math.floor(at[cell[i]] / columns);
        const layer = Math.floor(row / (rows / model.layers));
        if (tier[cell[i]] !== model.tiers[i] || layer !== layers[i])
            return [`${what}: neuron ${i}`];
    }
    const sum = neurons.reduce((a, b) => a + b, 0);
    const inside = continents.every(({from, to}) => from >= 0 && to <= 1);
    return sum === model.total && inside ? [] : [`${what}: ${sum} neurons in cells`];
}

function frame(request, token, bits) {
    const data = new DataView(new ArrayBuffer(29 + bits.length));
    data.setUint32(0, 25 + bits.length, true);
    data.setUint8(4, 1);
    data.setUint32(5, request, true);
    data.setUint32(9, token, true);
    [0.25, 1, 2, 3].forEach((v, i) => data.setFloat32(13 + 4 * i, v, true));
    bits.forEach((b, i) => data.setUint8(29 + i, b));
    return new Uint8Array(data.buffer);
}

// Frames cut at every place, and a memory that is too small for them.
export function frames() {
    const parts = [frame(7, 0, [1, 2]), frame(7, 2, [4, 2]), frame(8, 0, [9, 9])];
    const all = Uint8Array.from(parts.flatMap((part) => [...part]));
    const text = (f) => [f.request, f.token, f.share, ...f.read, ...f.bits].join();
    const seen = [1, 2, 3, 5, 31, 32, 1000].map((size) => {
        const cutter = new Cutter();
        const found = [];
        for (let i = 0; i < all.length; i += size) {
            cutter.push(all.slice(i, i + size), (bytes) => found.push(parseFrame(bytes)));
        }
        return found.map(text).join(' ');
    });
    const memory = new Memory(7);
    memory.whole = true;
    new Cutter().push(all, (bytes) => memory.add(parseFrame(bytes)));
    const found = memory.find(7, 1, 1).map((f) => f.token);
    const both = [...together(memory.all(7)).bits];
    memory.add({request: 9, token: 0, bits: new Uint8Array(4)});
    return {seen, found, both, bytes: memory.bytes, left: memory.all(7).length};
}

// Medians of milliseconds for a picture of 32 x 14,336 neurons.
export function frameTimes() {
    const [layers, neurons, width, height] = [32, 14336, 1120, 284];
    const tiers = someTiers(layers * neurons);
    const layer_units = new Array(layers).fill(neurons);
    const model = new Model({layers, layer_units, tiers, bytes_per_unit: 6912});
    const canvas = Object.assign(document.createElement('canvas'), {width, height});
    // As on a machine without a graphics card, so that the time contains the drawing itself.
    const context = canvas.getContext('2d', {alpha: false, willReadFrequently: true});
    const bits =
        Uint8Array.from({length: (layers * neurons) / 8}, () => (draw() < 0.3 ? draw() * 256 : 0));
    const once = (work) => {
        const before = performance.now();
        work();
        return performance.now() - before;
    };
    const median = (work) => Array.from({length: 61}, () => once(work)).sort((a, b) => a - b)[30];
    let picture;
    return {
        'all places': once(() => {
            picture = new Picture(model, width, height);
        }),
        'a step': median(() => picture.light({bits, first: 0, token: 0}, true)),
        'pixels of a frame': median(() => picture.frame(16)),
        'a frame on the screen': median(() => {
            picture.frame(16);
            picture.paint(context, 0, 0, width, height);
            context.getImageData(0, 0, 1, 1);  // waits until it is drawn
        }),
    };
}
