// The stream of what the model computes: frames of the server, and the memory of recent answers.
//
// A frame is 4 bytes of length (little-endian, of what follows), 1 byte of kind, then
//   kind 1, a step: u32 request, u32 token, f32 share, f32 bytes from disk, RAM, GPU, then a bit
//   for
//           each neuron that was computed and fired;
//   kind 2, tiers: a byte for each neuron.
// The server sends at most 15 steps a second. A step's bits are those of all tokens since the step
// before it, its other figures those of its own token.

const HEADER = 24;            // of a step, after the kind
const LARGEST = 1 << 27;      // bytes of a frame; larger is no frame but a mistake
const REMEMBERED = 64 << 20;  // bytes of packed neurons of recent answers

// The steps of recent answers, the oldest answers leave first.
export class Memory {
    constructor(limit = REMEMBERED) {
        this.limit = limit;
        this.bytes = 0;
        this.requests = new Map();   // request -> its steps by ascending token
        this.connected = new Set();  // requests with a step since the stream was opened
    }

    // The stream was closed for a while: what comes next does not stand for what was missed.
    gap() {
        this.connected.clear();
        this.whole = false;
    }

    add(step) {
        let steps = this.requests.get(step.request);
        if (!steps) this.requests.set(step.request, steps = []);
        // From where on the step stands for tokens: of an answer that began while the stream stood
        // none was missed, even if a fast model's first step is its hundredth token.
        const follows = this.connected.has(step.request) && steps.length;
        if (follows)
            step.first = steps.at(-1).token + 1;
        else
            step.first = this.whole && !steps.length ? 0 : step.token;
        this.connected.add(step.request);
        steps.push(step);
        this.bytes += step.bits.length;
        while (this.bytes > this.limit) {
            const [request, oldest] = this.requests.entries().next().value;
            this.bytes -= oldest.shift().bits.length;
            if (!oldest.length) this.requests.delete(request);
        }
    }

    // The steps that contain tokens first..last of a request.
    find(request, first, last) {
        const steps = this.requests.get(request) || [];
        return steps.filter((s) => s.token >= first && s.first <= last);
    }

    all(request) { return this.requests.get(request) || []; }

    clear() {
        this.requests.clear();
        this.bytes = 0;
    }
}

// Several steps as one: every neuron that fired in any, the mean of the shares and bytes.
export function together(steps) {
    if (steps.length === 1) return steps[0];
    const bits = new Uint8Array(steps[0].bits.length);
    const read = [0, 0, 0];
    let share = 0;
    for (const step of steps) {
        for (let i = 0; i < bits.length; i++) bits[i] |= step.bits[i];
        share += step.share / steps.length;
        step.read.forEach((n, tier) => {
            read[tier] += n / steps.length;
        });
    }
    return {...steps.at(-1), first: steps[0].first, bits, read, share};
}

export function parseFrame(bytes) {
    const kind = bytes[0];
    if (kind === 2) return {kind, tiers: bytes.slice(1)};
    if (kind !== 1 || bytes.length < 1 + HEADER) return {kind: 0};
    const data = new DataView(bytes.buffer, bytes.byteOffset + 1, HEADER);
    const f = (at) => data.getFloat32(at, true);
    return {
        kind,
        request: data.getUint32(0, true),
        token: data.getUint32(4, true),
        share: f(8),
        read: [f(12), f(16), f(20)],
        bits: bytes.slice(1 + HEADER),
    };
}

// Cuts a stream of bytes into frames.
export class Cutter {
    constructor() {
        this.head = new Uint8Array(4);
        this.have = 0;  // bytes of the head, then of the frame
        this.frame = null;
    }

    // Calls `take` with each frame that these bytes complete.
    push(bytes, take) {
        let at = 0;
        while (at < bytes.length) {
            const into = this.frame || this.head;
            const n = Math.min(into.length - this.have, bytes.length - at);
            into.set(bytes.subarray(at, at + n), this.have);
            at += n;
            this.have += n;
            if (this.have < into.length) return;
            this.have = 0;
            if (this.frame) {
                take(this.frame);
                this.frame = null;
                continue;
            }
            const length = new DataView(this.head.buffer).getUint32(0, true);
            if (length < 1 || length > LARGEST)
                throw new RangeError('a frame of an impossible size');
            this.frame = new Uint8Array(length);
        }
    }
}

// The connection. It exists only between open and close, and comes back by itself after a loss.
export class Stream {
    // `take` gets every frame; `opened` is called when a connection stands.
    constructor(api, take, opened) {
        this.api = api;
        this.take = take;
        this.opened = opened;
        this.stands = false;
        this.wanted = null;
        this.control = null;
    }

    open(model) {
        if (this.wanted === model) return;
        this.close();
        this.wanted = model;
        this.control = new AbortController();
        this.run(model, this.control.signal);
    }

    close() {
        this.wanted = null;
        this.control?.abort();
        this.control = null;
        this.stands = false;
    }

    async run(model, signal) {
        let wait = 500;
        while (!signal.aborted) {
            try {
                const path = `view/stream?model=${encodeURIComponent(model)}`;
                const response = await this.api.request(path, {signal});
                this.stands = true;
                this.opened?.();
                await this.read(response.body.getReader(), signal, () => {
                    wait = 500;
                });
            } catch (error) {
                if (signal.aborted) return;
                // What is refused now will be refused again.
                const {status} = error;
                if (status === 501 || (status >= 400 && status < 500 && status !== 429)) return;
            }
            this.stands = false;
            // Many pages must not come back in the same moment.
            await new Promise((resume) => {
                setTimeout(resume, wait * (0.75 + Math.random() / 2));
            });
            wait = Math.min(wait * 2, 30000);
        }
    }

    async read(reader, signal, received) {
        const cutter = new Cutter();
        for (;;) {
            const {done, value} = await reader.read();
            if (done || signal.aborted) return;
            received();
            cutter.push(value, (bytes) => this.take(parseFrame(bytes)));
        }
    }
}
