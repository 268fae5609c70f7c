// The picture of a model: heat of its neurons, drawn cell by cell into ImageData.
//
// Each neuron's cell is computed once (layout.js). A frame then goes over the cells only: at
// 32 x 14,336 neurons that is about a millisecond. A cell shows the largest of three lights: its
// ground (a continent seen at night), how often its neurons fired lately, and the flash of now.

import {layOut} from './layout.js';

const FADE = 80;  // ms in which a flash falls to 1/e: after 300 ms nothing of it can be seen
const FLASH_LEAST = 110;  // of 255: one of many neurons in a cell must be seen too
const GROUND = 30;        // of 255: the brightest grain of a continent at rest

// Stops of each tier's colours from ground to white heat, by tier number: disk, RAM, GPU.
const COLOURS = [
    [[14, 12, 26], [46, 38, 80], [136, 110, 204], [226, 210, 255], [255, 255, 255]],
    [[8, 17, 33], [16, 50, 96], [60, 142, 234], [198, 228, 255], [255, 255, 255]],
    [[25, 15, 6], [86, 48, 10], [238, 144, 36], [255, 230, 172], [255, 255, 255]],
];
const STOPS = [0, 50, 125, 205, 255];
export const SEA = [7, 9, 15];

// 256 colours of each tier as pixels (little-endian RGBA, as all browsers' machines have it).
function palette() {
    const pixels = new Uint32Array(3 * 256);
    COLOURS.forEach((stops, tier) => {
        for (let v = 0; v < 256; v++) {
            let k = 0;
            while (v > STOPS[k + 1]) k += 1;
            const t = (v - STOPS[k]) / (STOPS[k + 1] - STOPS[k]);
            const [r, g, b] = stops[k].map((c, i) => Math.round(c + (stops[k + 1][i] - c) * t));
            pixels[tier * 256 + v] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
        }
    });
    return pixels;
}

const PALETTE = palette();

// Light for how often a cell's neurons fired, of 255 tokens. The power below one shows also what
// fires seldom.
const WARMTH = Uint8Array.from({length: 256}, (_, v) => Math.round(255 * (v / 255) ** 0.7));

export class Picture {
    // `hits` counts for each neuron how often it fired, `steps` how many steps there were.
    constructor(model, width, height) {
        this.model = model;
        this.hits = new Uint16Array(model.total);
        this.steps = 0;
        this.lift = 1;  // how much of the past shows: 1 at rest, less while flashes run
        this.canvas = document.createElement('canvas');
        this.glow = document.createElement('canvas');
        this.resize(width, height);
    }

    resize(width, height) {
        this.width = width;
        this.height = height;
        this.arrange();
    }

    // Computes all places again, after a new size or new tiers.
    arrange() {
        this.layout = layOut(this.model, this.width, this.height);
        const {columns, rows, at, tier} = this.layout;
        const n = at.length;
        this.canvas.width = columns;
        this.canvas.height = rows;
        this.context = this.canvas.getContext('2d');
        this.image = this.context.createImageData(columns, rows);
        this.pixels = new Uint32Array(this.image.data.buffer);
        this.heat = new Uint8Array(n);
        this.warm = new Uint8Array(n);  // how often the cell fired, 0..255
        this.count = new Uint32Array(n);
        this.touched = new Uint32Array(n);
        this.base = Uint16Array.from(tier, (t) => t * 256);
        this.grain = new Uint8Array(n);
        for (let k = 0; k < n; k++) {
            // A fixed scatter by place: continents look like land, and no frame differs from the
            // last.
            let scatter = Math.imul(at[k] ^ (at[k] >>> 9), 0x9e3779b1);
            scatter = (Math.imul(scatter ^ (scatter >>> 16), 0x85ebca6b) >>> 24) / 256;
            this.grain[k] = 6 + (GROUND - 6) * scatter ** 3;
        }
        this.recount();
    }

    forget() {
        this.hits.fill(0);
        this.steps = 0;
        this.heat.fill(0);
        this.recount();
    }

    // Lights the neurons of a step. `counted`: they also count as firings of the past.
    light(step, counted) {
        const {bits} = step;
        const {cell, neurons} = this.layout;
        const {count, touched, hits, heat, past} = this;
        const total = this.model.total;
        const whole = new Uint32Array(
            bits.buffer.slice(bits.byteOffset, bits.byteOffset + (bits.length & ~3)));
        let many = 0;
        const fire = (i) => {
            if (counted && hits[i] < 65535) hits[i] += 1;
            const k = cell[i];
            if (count[k]++ === 0) touched[many++] = k;
            if (counted) past[k] += 1;
        };
        for (let w = 0; w < whole.length; w++) {
            // Bit by bit only where something fired: nine of ten bits are zero.
            for (let word = whole[w]; word; word &= word - 1) {
                const i = w * 32 + 31 - Math.clz32(word & -word);
                if (i < total) fire(i);
            }
        }
        for (let i = whole.length * 32; i < Math.min(bits.length * 8, total); i++) {
            if (bits[i >> 3] & (1 << (i & 7))) fire(i);
        }
        for (let m = 0; m < many; m++) {
            const k = touched[m];
            const part = count[k] / neurons[k];
            const v = part >= 1 ? 255 : FLASH_LEAST + (255 - FLASH_LEAST) * Math.sqrt(part);
            if (v > heat[k]) heat[k] = v;
            count[k] = 0;
        }
        if (counted) {
            this.steps += 1;
            this.warmUp();
        }
    }

    // Sums the past of each cell, after places changed.
    recount() {
        const {cell} = this.layout;
        this.past = new Uint32Array(this.warm.length);
        for (let i = 0; i < cell.length; i++) this.past[cell[i]] += this.hits[i];
        this.warmUp();
    }

    // How often each cell fired, as light.
    warmUp() {
        const {neurons} = this.layout;
        const {warm, past, steps} = this;
        if (!steps) {
            warm.fill(0);
            return;
        }
        for (let k = 0; k < warm.length; k++)
            warm[k] = WARMTH[(255 * past[k]) / (neurons[k] * steps) | 0];
    }

    cool() { this.heat.fill(0); }

    // Computes all pixels; heat falls by what `ms` milliseconds take. Returns whether any is left.
    frame(ms) {
        const {heat, warm, grain, base, pixels} = this;
        const {at} = this.layout;
        const factor = ms > 0 ? Math.exp(-ms / FADE) : 1;
        const fade = new Uint8Array(256);
        const past = new Uint8Array(256);
        for (let v = 0; v < 256; v++) {
            fade[v] = ms > 0 ? Math.max(0, v * factor - 1) : v;
            past[v] = v * this.lift * 0.78;
        }
        let hot = 0;
        for (let k = 0; k < at.length; k++) {
            let v = past[warm[k]] + grain[k];
            const h = heat[k];
            if (h) {
                if (h > v) v = h;
                hot += heat[k] = fade[h];
            }
            pixels[at[k]] = PALETTE[base[k] + v];
        }
        this.context.putImageData(this.image, 0, 0);
        return hot > 0;
    }

    // Draws the map into a rectangle of another canvas, with a glow around what is hot.
    paint(context, x, y, width, height) {
        const {columns, rows, size} = this.layout;
        const whole = size && width === this.width && height === this.height;
        const w = whole ? columns * size : width;
        const h = whole ? rows * size : height;
        const left = x + Math.floor((width - w) / 2);
        const top = y + Math.floor((height - h) / 2);
        context.imageSmoothingEnabled = !size;
        context.drawImage(this.canvas, left, top, w, h);
        if (size) this.dots(context, left, top, w, h);
        this.shine(context, left, top, w, h);
    }

    // Dark lines between large cells, so that neurons are dots.
    dots(context, left, top, w, h) {
        const {columns, rows} = this.layout;
        const line = Math.max(1, Math.round(w / columns / 6));
        context.fillStyle = `rgb(${SEA.join(' ')})`;
        for (let c = 1; c <= columns; c++)
            context.fillRect(left + Math.round((c * w) / columns) - line, top, line, h);
        for (let r = 1; r <= rows; r++)
            context.fillRect(left, top + Math.round((r * h) / rows) - line, w, line);
    }

    // Light that spills over: the picture itself, made small and drawn large again.
    shine(context, left, top, w, h) {
        const small = this.glow.getContext('2d');
        const [gw, gh] = [Math.max(1, w >> 3), Math.max(1, h >> 3)];
        if (this.glow.width !== gw || this.glow.height !== gh)
            Object.assign(this.glow, {width: gw, height: gh});
        small.globalCompositeOperation = 'copy';
        small.imageSmoothingQuality = 'low';
        small.drawImage(this.canvas, 0, 0, gw, gh);
        // Times itself: dark land does not shine.
        small.globalCompositeOperation = 'multiply';
        small.drawImage(this.glow, 0, 0);
        context.save();
        context.globalCompositeOperation = 'lighter';
        context.globalAlpha = 0.55;
        context.imageSmoothingEnabled = true;
        context.drawImage(this.glow, left, top, w, h);
        context.restore();
    }

    // A larger or smaller picture of the same moment, for a file.
    copy(width, height, step) {
        const other = new Picture(this.model, width, height);
        other.hits.set(this.hits);
        other.steps = this.steps;
        other.lift = this.lift;
        other.recount();
        if (step) other.light(step, false);
        other.frame(0);
        return other;
    }
}
