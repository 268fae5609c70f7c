// Where each neuron lies in the picture. Of mixtures whose experts are computed as a whole, a
// neuron here is an expert.
//
// Tiers are continents from left to right: GPU, RAM, disk. Layers go from top to bottom through all
// of them. A continent's width at a layer is proportional to the neurons that the layer has there,
// with one scale for the whole map: equal areas hold equal numbers of neurons.

export const ORDER = [2, 1, 0];  // tiers from left to right, by their number in the protocol

// What the page keeps about a model: sizes, the tier of each neuron, and its slot in its tier.
export class Model {
    constructor({layers, layer_units, tiers, bytes_per_unit, names, unit}) {
        this.layers = layers;
        this.first = [0];  // neuron of each layer, and how many there are
        for (const n of layer_units) this.first.push(this.first[this.first.length - 1] + n);
        this.total = this.first[layers];
        this.bytesPerUnit = bytes_per_unit;
        this.unit = unit || 'neurons';
        this.names = names || ['disk', 'RAM', 'GPU'];
        this.tiers = tiers;
        if (tiers.length !== this.total) throw new RangeError('the tiers do not fit the model');
        this.counts = new Uint32Array(layers * 3);  // by layer, tier
        this.slots =
            new Uint32Array(this.total);  // place of a neuron among those of its layer and tier
        this.place();
    }

    place() {
        this.counts.fill(0);
        for (let i = 0, l = 0; l < this.layers; l++) {
            for (; i < this.first[l + 1]; i++) {
                if (this.tiers[i] > 2) this.tiers[i] = 0;
                this.slots[i] = this.counts[l * 3 + this.tiers[i]]++;
            }
        }
    }

    // Takes new tiers. Neurons that stay keep their slots where that is possible: newcomers fill
    // the slots that others left, and only then the last ones move up. Without this, one neuron
    // that comes in would shift all the others.
    move(next) {
        if (next.length !== this.total) throw new RangeError('the tiers do not fit the model');
        for (let l = 0; l < this.layers; l++) {
            const moved = [];
            const free = [[], [], []];
            for (let i = this.first[l]; i < this.first[l + 1]; i++) {
                const tier = next[i] > 2 ? 0 : next[i];
                if (tier === this.tiers[i]) continue;
                free[this.tiers[i]].push(this.slots[i]);
                moved.push(i);
                this.tiers[i] = tier;
            }
            if (moved.length) this.settle(l, moved, free);
        }
    }

    settle(l, moved, free) {
        for (const slots of free) slots.sort((a, b) => b - a);
        for (const i of moved) {
            const tier = this.tiers[i];
            const at = l * 3 + tier;
            // A slot that was left is counted until the end; a new one makes the tier larger.
            this.slots[i] = free[tier].length ? free[tier].pop() : this.counts[at]++;
        }
        for (let tier = 0; tier < 3; tier++) {
            if (!free[tier].length) continue;
            const left = this.counts[l * 3 + tier] - free[tier].length;
            const holes = free[tier].filter((slot) => slot < left);
            for (let i = this.first[l]; i < this.first[l + 1] && holes.length; i++) {
                if (this.tiers[i] === tier && this.slots[i] >= left) this.slots[i] = holes.pop();
            }
            this.counts[l * 3 + tier] = left;
        }
    }

    // Neurons of a layer.
    inLayer(l) { return this.first[l + 1] - this.first[l]; }

    // Neurons of a tier in all layers.
    inTier(tier) {
        let sum = 0;
        for (let l = 0; l < this.layers; l++) sum += this.counts[l * 3 + tier];
        return sum;
    }
}

// Smooth noise in -1..1, the same in every run: coasts that are straight lines do not look like
// land.
function ripple(y, seed) {
    const at = (n) => {
        let h = Math.imul(n ^ Math.imul(seed, 0x85ebca6b), 0x9e3779b1);
        h = Math.imul(h ^ (h >>> 15), 0xc2b2ae35);
        return ((h ^ (h >>> 13)) >>> 0) / 2 ** 31 - 1;
    };
    const low = Math.floor(y);
    const t = (y - low) ** 2 * (3 - 2 * (y - low));
    return at(low) * (1 - t) + at(low + 1) * t;
}

// Slopes of a monotone curve (Fritsch and Carlson) through the sums of `counts`. Its slope is a
// width that goes smoothly from layer to layer, while each layer keeps its area exactly.
function slopes(counts) {
    const n = counts.length;
    // At the ends the line through the first two, but no slope of which a monotone curve bends
    // back.
    const end = (a, b) => Math.min(Math.max(a + (a - b) / 2, 0), 3 * a);
    const found = [end(counts[0], counts[Math.min(1, n - 1)])];
    for (let l = 1; l < n; l++) {
        const [a, b] = [counts[l - 1], counts[l]];
        found.push(a && b ? (2 * a * b) / (a + b) : 0);
    }
    found.push(end(counts[n - 1], counts[Math.max(n - 2, 0)]));
    return found;
}

// Neurons of a tier up to the end of each row of cells, counted from the start of the layer.
// Sums, so that rounding loses none.
function coast(model, tier, rows) {
    const counts = Array.from({length: model.layers}, (_, l) => model.counts[l * 3 + tier]);
    const slope = slopes(counts);
    const until = new Float64Array(model.layers * rows);
    counts.forEach((count, l) => {
        const curve = (t) => count * t * t * (3 - 2 * t) + slope[l] * t * (1 - t) ** 2 -
            slope[l + 1] * t * t * (1 - t);
        const widths = [];
        let sum = 0;
        for (let y = 0; y < rows; y++) {
            const rough = 1 + 0.012 * ripple((l * rows + y) / 4, tier) +
                0.045 * ripple((l * rows + y) / 21, tier + 5);
            widths.push((curve((y + 1) / rows) - curve(y / rows)) * rough);
            sum += widths[y];
        }
        let done = 0;
        for (let y = 0; y < rows; y++) {
            done += widths[y];
            until[l * rows + y] = y + 1 === rows || !sum ? count : Math.round((count * done) / sum);
        }
    });
    return until;
}

// Cells of a continent in each row, if `share` neurons share a cell.
const wide = (until, y, rows) => until[y] - (y % rows ? until[y - 1] : 0);

// The grid of cells for a picture of width x height pixels:
//   columns, rows of cells; size in pixels of a cell if cells are drawn as dots, else 0;
//   cell: Uint32Array, the compact number of the cell of each neuron;
//   at: place in the grid of each compact cell; tier, neurons of each.
//   continents: {tier, from, to} in shares of the width.
export function layOut(model, width, height) {
    const present = ORDER.filter((tier) => model.inTier(tier));
    const gap = Math.max(10, Math.round(width * 0.022));
    const gaps = gap * Math.max(0, present.length - 1);
    let slots = 0;
    for (const tier of present) {
        let most = 0;
        for (let l = 0; l < model.layers; l++) most = Math.max(most, model.counts[l * 3 + tier]);
        slots += most * model.layers;
    }
    // A layer has at least one row of cells.
    const ideal =
        Math.min(Math.sqrt(((width - gaps) * height) / Math.max(slots, 1)), height / model.layers);
    // Large cells are dots of whole pixels. Smaller ones are scaled smoothly. Below one pixel
    // several neurons share a cell.
    let size = ideal >= 4 ? Math.min(Math.floor(ideal), 22) : Math.max(ideal, 1);
    const dots = size >= 4;
    let grid = tryGrid(model, present, width, height, size, gap);
    while (dots && size > 4 && grid.share > 1) {
        size -= 1;
        grid = tryGrid(model, present, width, height, size, gap);
    }
    return fill(model, present, grid, dots ? size : 0);
}

function tryGrid(model, present, width, height, size, gap) {
    const rows = Math.max(1, Math.round(height / size / model.layers - (size >= 4 ? 0.5 : 0)));
    const columns = Math.max(present.length, Math.floor(width / size));
    const gapCells = Math.max(1, Math.round(gap / size));
    const coasts = present.map((tier) => coast(model, tier, rows));
    const widest = coasts.map((until) => {
        let most = 0;
        for (let y = 0; y < until.length; y++) most = Math.max(most, wide(until, y, rows));
        return most;
    });
    // The outer coasts need a margin to drift in.
    const room = columns - gapCells * (present.length - 0.4);
    const sum = widest.reduce((a, b) => a + b, 0);
    // Neurons that share a cell; below one, a cell holds one and the map is narrower than its room.
    const share = Math.max(sum / Math.max(room, 1), size >= 4 ? 0 : 1e-9);
    return {rows, columns, gapCells, coasts, widest, share, room, sum};
}

function fill(model, present, grid, size) {
    const {rows, columns, gapCells, coasts, widest} = grid;
    const share = Math.max(grid.share, 1);
    const total = grid.sum / share + gapCells * Math.max(0, present.length - 1);
    const number = new Int32Array(columns * model.layers * rows).fill(-1);
    const cell = new Uint32Array(model.total);
    const at = [];
    const tier = [];
    const neurons = [];
    const continents = [];
    let left = (columns - total) / 2;
    present.forEach((t, k) => {
        const span = widest[k] / share;
        continents.push({tier: t, from: left / columns, to: (left + span) / columns});
        const until = coasts[k];
        const middle = left + span / 2;
        for (let l = 0; l < model.layers; l++) {
            // First the row and the column of each slot, then the neurons to their slots.
            const count = model.counts[l * 3 + t];
            const of = new Uint32Array(count);
            for (let y = 0, slot = 0; y < rows; y++) {
                const here = wide(until, l * rows + y, rows);
                // The two coasts of a continent differ; the land only moves, its area stays.
                const drift =
                    ripple((l * rows + y) / 19, t + 9) * Math.min(gapCells * 0.28, span * 0.02);
                const first = Math.max(0, Math.round(middle + drift - here / share / 2));
                for (let j = 0; j < here; j++, slot++) {
                    const column = Math.min(first + Math.floor(j / share), columns - 1);
                    const place = (l * rows + y) * columns + column;
                    if (number[place] < 0) {
                        number[place] = at.length;
                        at.push(place);
                        tier.push(t);
                        neurons.push(0);
                    }
                    of[slot] = number[place];
                    neurons[number[place]] += 1;
                }
            }
            for (let i = model.first[l]; i < model.first[l + 1]; i++) {
                if (model.tiers[i] === t) cell[i] = of[model.slots[i]];
            }
        }
        left += span + gapCells;
    });
    return {
        columns,
        rows: model.layers * rows,
        size,
        cell,
        continents,
        at: Uint32Array.from(at),
        tier: Uint8Array.from(tier),
        neurons: Uint32Array.from(neurons),
    };
}
