// The live view: the map of the model with its figure, labels and table.

import {byId, make} from './dom.js';
import {Model} from './layout.js';
import {Picture, SEA} from './picture.js';
import {Memory, Stream, together} from './stream.js';
import {bytes, percent, quoted, rate, whole} from './words.js';

const ORDER = [2, 1, 0];
const STILL = 1000;   // ms between pictures where motion is not wanted
const OPENING = 600;  // ms that an answer waits for the stream at most
const REST = 1;  // how much of the past shows at rest, while words come, and behind a held word
const LIVE = 0.38;
const HELD = 0.16;

const decoded = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// Places labels of the given widths above their continents so that they neither overlap nor leave.
export function spread(lefts, widths, total, gap) {
    const at = [...lefts];
    for (let k = 1; k < at.length; k++) at[k] = Math.max(at[k], at[k - 1] + widths[k - 1] + gap);
    for (let k = at.length - 1, right = total; k >= 0; k--) {
        at[k] = Math.max(0, Math.min(at[k], right - widths[k]));
        right = at[k] - gap;
    }
    return at;
}

export class View {
    constructor(api, settings) {
        this.api = api;
        this.settings = settings;
        this.memory = new Memory();
        this.stream = new Stream(api, (frame) => this.take(frame), () => {
            this.memory.gap();
            this.opened?.();
        });
        this.element = byId('view');
        this.canvas = byId('map');
        this.box = this.canvas.parentElement;
        this.context = this.canvas.getContext('2d', {alpha: false});
        this.reduced = matchMedia('(prefers-reduced-motion: reduce)');
        this.inSight = true;
        this.lift = REST;           // what the picture's lift moves to
        this.watchers = new Set();  // called after every drawn frame, for recordings
        this.listen();
    }

    listen() {
        byId('toggle-view').addEventListener('click', () => {
            this.settings.view = !this.settings.view;
            this.appear();
        });
        byId('fold-view').addEventListener('click', () => {
            this.settings.folded = !this.settings.folded;
            this.appear();
            this.rest();
        });
        document.addEventListener('visibilitychange', () => this.connect());
        new IntersectionObserver((seen) => {
            this.inSight = seen.at(-1).isIntersecting;
            this.connect();
        }).observe(this.element);
        new ResizeObserver(() => this.resize()).observe(this.box);
        this.reduced.addEventListener('change', () => this.rest());
        byId('open-table').addEventListener('click', () => this.openTable());
        const full = byId('full-screen');
        full.hidden = !document.fullscreenEnabled;
        full.addEventListener('click', () => {
            if (document.fullscreenElement)
                document.exitFullscreen();
            else
                this.element.requestFullscreen().catch(() => {});
        });
    }

    // --- The model and the connection ---------------------------------------------------------

    async open(name) {
        this.stream.close();
        this.memory.clear();
        this.model = this.picture = null;
        this.own = undefined;
        this.rate = 0;
        this.dense = false;
        this.name = name;
        this.why = '';
        this.appear();
        try {
            const path = `view?model=${encodeURIComponent(name)}`;
            const shape = await (await this.api.request(path)).json();
            if (this.name !== name) return;
            const model = new Model({...shape, tiers: decoded(shape.tiers)});
            if (!model.total) throw new Error('no neurons');
            this.model = model;
            byId('table-title').textContent = `Where the ${model.unit} are`;
            this.still = shape.live === false;  // a device does not tell which neurons run
            this.dense = shape.sparse === false;
            this.bytes = shape.memory;  // by tier
        } catch (error) {
            if (this.name !== name) return;
            this.why = error.status === 401 ? 'The live view needs the API key.' :
                                              'This server or model has no live view.';
        }
        this.appear();
        this.rest();
    }

    // One line, where nobody wants more or nothing is to be seen: of a dense model all neurons run.
    get folded() { return this.dense || this.settings.folded; }

    appear() {
        const shown = this.settings.view && Boolean(this.model);
        this.element.hidden = !shown;
        this.element.classList.toggle('folded', this.folded);
        const fold = byId('fold-view');
        fold.hidden = this.dense;
        fold.setAttribute('aria-expanded', String(!this.folded));
        fold.title = this.folded ? 'Unfold the picture' : 'Fold to one line';
        fold.setAttribute('aria-label', fold.title);
        if (this.model) this.tell();
        const button = byId('toggle-view');
        button.setAttribute('aria-pressed', String(shown));
        button.disabled = Boolean(this.why);
        button.title = this.why || 'Live view of the model';
        this.connect();
        if (shown) this.resize();
    }

    // The stream exists only while somebody can see the map.
    connect() {
        const seen = !this.element.hidden && !this.folded && this.inSight && !document.hidden;
        const watched = this.model && !this.still && seen;
        if (watched)
            this.stream.open(this.name);
        else
            this.stream.close();
    }

    take(frame) {
        if (!this.model) return;
        if (frame.kind === 2) {
            this.moveTiers(frame.tiers);
            return;
        }
        if (frame.kind !== 1 || frame.bits.length < this.model.total >> 3) return;
        this.memory.add(frame);
        // Somebody else's words must not stand as this answer's; without an answer they may show.
        const foreign = this.own !== undefined && frame.request !== this.own;
        if (this.playing || (foreign && this.running)) return;
        if (this.running || foreign || this.own === undefined)
            this.live(frame);
        else if (!this.held) {
            // The last step comes after the answer's last word; of a short answer it is the only
            // one.
            this.picture?.light(frame, true);
            this.average(this.own);
            this.wake();
            byId('replay').disabled = false;
        }
    }

    moveTiers(tiers) {
        try {
            this.model.move(tiers);
        } catch {
            return;  // another model's: the next `open` brings the right ones
        }
        if (!this.picture) return;
        this.picture.arrange();
        this.labels(this.last);
        this.wake();
    }

    // --- What is shown ------------------------------------------------------------------------

    // Waits for a stream that is being opened, not for long: a short answer would be over before it
    // stands.
    async ready() {
        if (!this.stream.wanted || this.stream.stands) return;
        await new Promise((resolve) => {
            this.opened = resolve;
            setTimeout(resolve, OPENING);
        });
    }

    // An answer begins; its request number is told by its first chunk.
    begin() {
        this.running = true;
        this.memory.whole = this.stream.stands;
        this.own = undefined;
        this.held = null;
        this.playing = null;
        this.picture?.forget();
        this.lift = this.reduced.matches ? REST : LIVE;
        byId('replay').disabled = true;
    }

    claim(request) { this.own = request; }

    // speed: tokens a second, if the server told it.
    end(speed) {
        this.running = false;
        if (speed) this.speed(speed);
        byId('replay').disabled = !this.memory.all(this.own).length;
        this.rest();
    }

    speed(found) {
        this.rate = found;
        this.tell();
    }

    // The line of a folded view: speed, memory, and why there is no picture.
    tell() {
        if (!this.folded) return;
        const held = [2, 1].filter((tier) => this.bytes?.[tier] > 0);  // a disk is no memory
        const parts = held.map((tier) => `${this.model.names[tier]} ${bytes(this.bytes[tier])}`);
        if (this.rate) parts.unshift(`${rate(this.rate)} tokens/s`);
        if (this.dense) parts.push('dense: every neuron runs');
        byId('view-line').textContent = parts.join(' · ');
    }

    // Nothing runs: how often neurons fired in the last answer.
    rest() {
        this.held = null;
        this.lift = REST;
        if (!this.model) return;
        if (this.memory.all(this.own).length)
            this.average(this.own);
        else
            this.figure(
                whole(this.model.total),
                `${this.model.unit}${this.still ? ', unseen on a GPU' : ' wait for a word'}`, null);
        this.wake();
    }

    average(request) {
        const steps = this.memory.all(request);
        let [share, many] = [0, 0];
        const read = [0, 0, 0];
        for (const step of steps) {
            const n = step.token - step.first + 1;
            many += n;
            share += step.share * n;
            step.read.forEach((b, tier) => {
                read[tier] += b * n;
            });
        }
        const mean = {share: share / many, read: read.map((b) => b / many)};
        this.figure(percent(mean.share), 'of the model ran per word, on average', mean);
    }

    live(step) {
        if (!this.picture) return;
        this.picture.light(step, true);
        if (this.reduced.matches)
            this.picture.cool();
        else
            this.lit = step;
        if (this.held) return;
        this.figure(percent(step.share), 'of the model ran for this word', step);
        this.wake();
    }

    // Shows the neurons of a word until `release`.
    hold(request, first, last, word) {
        const steps = this.memory.find(request, first, last);
        if (!steps.length || !this.picture) return false;
        const step = together(steps);
        this.held = step;
        this.lift = HELD;
        this.picture.cool();
        this.picture.light(step, false);
        this.lit = step;
        // Of a fast model one token of many is shown: it may be one near the word.
        const around = step.token - step.first >= 4 ? 'a word near ' : '';
        this.figure(percent(step.share), `of the model ran for ${around}${quoted(word)}`, step);
        this.wake();
        return true;
    }

    release() {
        if (!this.held) return;
        this.held = null;
        this.lit = null;
        if (this.running)
            this.lift = this.reduced.matches ? REST : LIVE;
        else
            this.rest();
        if (this.reduced.matches) this.picture.cool();
        this.wake();
    }

    // Plays an answer again within some milliseconds; `tell` gets each step.
    async replay(milliseconds, tell) {
        const steps = this.memory.all(this.own);
        if (!steps.length || this.running) return;
        const playing = this.playing = {};
        this.held = null;
        this.lift = LIVE;
        const start = performance.now();
        const wait = milliseconds / steps.length;
        for (let k = 0; k < steps.length; k++) {
            const rest = start + k * wait - performance.now();
            if (rest > 0)
                await new Promise((resume) => {
                    setTimeout(resume, rest);
                });
            if (this.playing !== playing || this.running) break;
            this.picture.light(steps[k], false);
            this.lit = steps[k];
            this.figure(percent(steps[k].share), 'of the model ran for this word', steps[k]);
            tell?.(steps[k]);
            this.wake();
        }
        if (this.playing !== playing) return;
        this.playing = null;
        tell?.(null);
        if (!this.running) this.rest();
    }

    figure(number, text, step) {
        this.now = {number, text, step};
        const still = this.reduced.matches && this.running;
        if (still && performance.now() - (this.told || 0) < STILL) return;
        this.told = performance.now();
        byId('share').textContent = number;
        byId('share-text').textContent = text;
        this.labels(step);
    }

    // Name, share and bytes of each tier that holds neurons.
    tierTexts(step) {
        return ORDER.filter((tier) => this.model.inTier(tier)).map((tier) => {
            const many = this.model.inTier(tier);
            const size = bytes(many * this.model.bytesPerUnit);
            const read = step ? `${bytes(step.read[tier])} read` : '';
            const holds = `${size}, ${percent(many / this.model.total)}`;
            return {tier, name: this.model.names[tier], holds, read};
        });
    }

    labels(step) {
        this.last = step;
        const texts = this.tierTexts(step);
        const parent = byId('tiers');
        if (parent.children.length !== texts.length) {
            parent.replaceChildren(...texts.map(
                () => make(
                    'p', {className: 'tier'}, make('b'), make('span', {className: 'read'}),
                    make('span', {className: 'holds'}))));
        }
        texts.forEach(({tier, name, holds, read}, k) => {
            const label = parent.children[k];
            label.dataset.tier = tier;
            [name, read || holds, read ? `of ${holds}` : `of the ${this.model.unit}`].forEach(
                (text, i) => {
                    if (label.children[i].textContent !== text)
                        label.children[i].textContent = text;
                });
        });
        if (!this.picture) return;
        // Below their continents; their widths are those of style.css, not those of the text, so
        // that they stand still while figures change.
        const total = parent.clientWidth;
        const widths = texts.map(() => Math.min(168, (total - 16) / texts.length));
        const lefts = this.picture.layout.continents.map((c) => c.from * total);
        spread(lefts, widths, total, 8).forEach((left, k) => {
            parent.children[k].style.left = `${left}px`;
            parent.children[k].style.width = `${widths[k]}px`;
        });
    }

    // --- Drawing ------------------------------------------------------------------------------

    resize() {
        const {clientWidth, clientHeight} = this.box;
        if (!this.model || !clientWidth || !clientHeight) return;
        const scale = Math.min(devicePixelRatio || 1, 2);
        const [width, height] = [clientWidth, clientHeight].map((n) => Math.round(n * scale));
        if (this.picture && this.canvas.width === width && this.canvas.height === height) return;
        this.canvas.width = width;
        this.canvas.height = height;
        if (this.picture)
            this.picture.resize(width, height);
        else
            this.picture = new Picture(this.model, width, height);
        this.describe();
        this.labels(this.last);
        this.wake();
    }

    describe() {
        const parts = this.tierTexts(null).map(({name, holds}) => `${name}: ${holds}`);
        const {total, unit, layers} = this.model;
        const text = `Map of ${whole(total)} ${unit} in ${layers} layers. ${parts.join('; ')}.`;
        this.canvas.setAttribute('aria-label', text);
    }

    wake() {
        if (this.awake || !this.picture) return;
        this.awake = true;
        this.before = performance.now();
        requestAnimationFrame((now) => this.tick(now));
    }

    tick(now) {
        this.awake = false;
        const {picture} = this;
        if (!picture) return;
        const still = this.reduced.matches;
        if (still && this.running && !this.held && now - (this.drawn || 0) < STILL) {
            this.later ||= setTimeout(() => {
                this.later = 0;
                this.wake();
            }, STILL);
            return;
        }
        this.drawn = now;
        const ms = Math.min(Math.max(now - this.before, 1), 100);
        picture.lift += (this.lift - picture.lift) * (still ? 1 : 1 - Math.exp(-ms / 160));
        const moving = Math.abs(picture.lift - this.lift) > 0.004;
        if (!moving) picture.lift = this.lift;
        const hot = picture.frame(this.held ? 0 : ms);
        this.draw();
        for (const watch of this.watchers) watch();
        if (moving || (hot && !this.held) || this.watchers.size) this.wake();
    }

    draw() {
        const {width, height} = this.canvas;
        this.context.fillStyle = `rgb(${SEA.join(' ')})`;
        this.context.fillRect(0, 0, width, height);
        this.picture.paint(this.context, 0, 0, width, height);
    }

    // --- The table, for those who do not see the map or want figures --------------------------

    openTable() {
        const {model} = this;
        const tiers = ORDER.filter((tier) => model.inTier(tier));
        const names = tiers.map((tier) => model.names[tier]);
        const cell = (text) => make('td', {}, text);
        const heading = (text, scope) => make('th', {scope}, text);
        const rows = [];
        for (let l = 0; l < model.layers; l++) {
            const shares =
                tiers.map((tier) => percent(model.counts[l * 3 + tier] / model.inLayer(l)));
            const fired = this.picture.steps ? percent(this.fired(l)) : '–';
            rows.push(
                make('tr', {}, heading(String(l + 1), 'row'), ...shares.map(cell), cell(fired)));
        }
        const ran = model.unit === 'experts' ? 'Chosen' : 'Fired';
        const head = ['Layer', ...names, ran].map((text) => heading(text, 'col'));
        byId('table-body')
            .replaceChildren(
                make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...rows));
        byId('table-text').textContent =
            `${byId('share').textContent} ${byId('share-text').textContent}. ` +
            `Each row is a layer: where its ${model.unit} are, and how many ${
                model.unit === 'experts' ? 'were chosen' : 'fired'} in a step of the ` +
            'last answer, on average. A step is one token, or a few that came at once.';
        byId('table').showModal();
    }

    fired(layer) {
        let sum = 0;
        const {first} = this.model;
        for (let i = first[layer]; i < first[layer + 1]; i++) sum += this.picture.hits[i];
        return sum / (this.picture.steps * this.model.inLayer(layer));
    }
}
