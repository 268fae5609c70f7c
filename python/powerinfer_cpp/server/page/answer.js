// An answer as an element: thoughts, text, calls of tools, and what can be done about it.

import {iconButton, make, say} from './dom.js';
import {versions} from './messages.js';
import {PlainText, Rendered} from './text/markdown.js';
import {duration, many, rate} from './words.js';

async function copy(text) {
    try {
        await navigator.clipboard.writeText(text);
        say('Copied.');
    } catch {
        say('The browser did not allow copying.');
    }
}

// JSON over several lines; what is none stays as it is. Only spaces change: numbers may be larger
// than those of JavaScript.
export function pretty(text) {
    try {
        JSON.parse(text);
    } catch {
        return text;
    }
    const parts = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g);
    const line = (depth) => `\n${'  '.repeat(depth)}`;
    let depth = 0;
    return parts
        .map((part, k) => {
            const empty = '{['.includes(part[0]) && '}]'.includes(parts[k + 1]);
            if ('{['.includes(part)) return part + (empty ? '' : line(++depth));
            if ('}]'.includes(part))
                return '{['.includes(parts[k - 1]) ? part : line(--depth) + part;
            return part === ',' ? part + line(depth) : part === ':' ? ': ' : part;
        })
        .join('');
}

const unfolded = new WeakSet();  // messages whose thoughts are open

// An answer that can grow. `trace` (or null) tells which tokens made which part of the text.
// isText: it continues a text, and its signs stay as they are.
export class Answer {
    constructor(message, trace, isText = false) {
        this.message = message;
        const name = isText ? 'Continuation' : 'Answer';
        this.body = make('div', {className: isText ? 'body' : 'body markdown'});
        this.meta = make('p', {className: 'speed'});
        this.actions = make('div', {className: 'actions'});
        this.element = make(
            'article', {className: 'message answer'}, this.body,
            make('div', {className: 'below'}, this.meta, this.actions));
        this.element.setAttribute('aria-label', name);
        this.rendered = new (isText ? PlainText : Rendered)(this.body, Boolean(trace));
        this.trace = trace;
        if (trace) {
            // One stop for the tab key; arrows go through the words.
            this.body.tabIndex = 0;
            this.body.setAttribute('role', 'group');
            this.body.setAttribute(
                'aria-label', `${name}. Left and right arrow: what ran for each word`);
        }
        this.show();
    }

    show() {
        const {content, reasoning_content: thoughts, tool_calls: calls} = this.message;
        const running = this.element.classList.contains('running');
        if (thoughts) this.showThoughts(running);
        this.rendered.show(content, running);
        if (calls) this.showCalls(calls);
        this.element.classList.toggle('empty', !content && !calls);
        this.body.hidden = !content && !running && Boolean(calls || thoughts);
    }

    // --- Thoughts, folded ---------------------------------------------------------------------

    // A part of the thoughts came.
    thinks() { this.thinking ||= performance.now(); }

    // They have ended.
    thought() {
        if (!this.thinking || this.message.thought_seconds !== undefined) return;
        this.message.thought_seconds = (performance.now() - this.thinking) / 1000;
    }

    showThoughts(running) {
        if (!this.thoughts) {
            this.thoughtsHead = make('summary');
            const inner = make('div', {className: 'markdown'});
            this.thoughtsText = new Rendered(inner, false);
            this.thoughts = make('details', {className: 'thoughts'}, this.thoughtsHead, inner);
            this.thoughts.open = unfolded.has(this.message);
            this.thoughts.addEventListener('toggle', () => {
                unfolded[this.thoughts.open ? 'add' : 'delete'](this.message);
                this.show();
            });
            this.body.before(this.thoughts);
        }
        const {thought_seconds: seconds, reasoning_content: text} = this.message;
        const ended = seconds !== undefined || !running;
        const words = !ended      ? 'Thinking…' :
            seconds === undefined ? 'Thoughts' :
                                    `Thought for ${duration(seconds)}`;
        if (this.thoughtsHead.textContent !== words) this.thoughtsHead.textContent = words;
        this.thoughts.classList.toggle('growing', !ended);
        // Folded they cost nothing.
        if (this.thoughts.open) this.thoughtsText.show(text, !ended);
    }

    // --- Calls of tools -----------------------------------------------------------------------

    showCalls(calls) {
        if (!this.calls) {
            this.calls = make('div', {className: 'calls'});
            this.body.after(this.calls);
        }
        const text = JSON.stringify(calls);
        if (this.callsText === text) return;
        this.callsText = text;
        this.calls.replaceChildren(...calls.map(({function: {name, arguments: given}}) => {
            const pre = make('pre', {tabIndex: 0}, make('code', {}, pretty(given)));
            pre.setAttribute('role', 'group');
            pre.setAttribute('aria-label', `Arguments of ${name}`);
            return make(
                'div', {className: 'code call'},
                make(
                    'div', {className: 'code-head'},
                    make('span', {}, 'calls ', make('b', {}, name || '…'))),
                pre);
        }));
    }

    running(tokens, seconds) {
        this.element.classList.add('running');
        this.meta.textContent =
            tokens > 1 && seconds > 0.3 ? `${rate(tokens / seconds)} tokens/s` : '';
    }

    // The answer stands. can: what can be done, {again, version, turn}, and before: {edit, version,
    // turn} of the text that it continues.
    done(can) {
        this.element.classList.remove('running');
        this.show();
        this.meta.textContent = this.facts().join(' · ');
        const copying = iconButton('copy', 'Copy the answer', () => copy(this.copied()));
        const tools = [copying];
        if (can.before) {
            tools.push(iconButton('edit', 'Edit and send again', can.before.edit));
            if (can.before.version) tools.push(versions(can.before));
        }
        if (can.again) tools.push(iconButton('again', 'Regenerate', can.again));
        if (can.version) tools.push(versions(can));
        this.actions.replaceChildren(...tools);
    }

    // What the button copies: of an answer that only calls tools, the calls.
    copied() {
        const {content, tool_calls: calls} = this.message;
        return content || !calls ? content : pretty(JSON.stringify(calls));
    }

    facts() {
        const {timings, stopped, cut, content, tool_calls: calls, reasoning_content: thoughts} =
            this.message;
        const parts = [];
        if (!content && !calls)
            parts.push(
                thoughts ? 'The model ended within its thoughts' :
                           'The model ended without a word');
        if (stopped) parts.push('stopped');
        if (cut) parts.push('cut off at the limit of tokens');
        if (timings?.predicted_n) {
            parts.push(`${rate(timings.predicted_per_second)} tokens/s, ${
                many(timings.predicted_n, 'token')}`);
        }
        if (timings?.prompt_n) {
            parts.push(`prompt ${rate(timings.prompt_per_second)} tokens/s, ${
                many(timings.prompt_n, 'token')}`);
        }
        return parts;
    }
}
