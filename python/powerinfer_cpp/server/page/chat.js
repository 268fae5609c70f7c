// A conversation: sending, stopping, answering again, and which words came from which tokens.

import {byId, notice, say} from './dom.js';
import {Answer, editMessage, greeting, problem, userMessage} from './messages.js';
import {deleteChat, newChat, saveChat} from './store.js';

const PROMPTS = [
    'Tell me a story about a little dragon.',
    'Why is the sky blue?',
    'Write a short poem about the sea.',
];
// For models that continue texts.
const BEGINNINGS = [
    'Once upon a time there was a little dragon',
    'The sky is blue because',
    'The sea was quiet that morning.',
];
const WRITTEN = 256;  // tokens of a continuation, unless the settings say how many

// Which tokens made which part of an answer. Kept in memory only, as are the neurons.
class Trace {
    constructor() {
        this.parts = [];  // {end: place in the text, first, last: tokens}
        this.request = undefined;
    }

    // A chunk's `view` names its last token; the chunk may hold several.
    add(end, view) {
        const before = this.parts.at(-1);
        this.request = view.request;
        this.parts.push({end, first: before ? before.last + 1 : 0, last: view.token});
    }

    // The tokens that made text[at, end), or null.
    find(at, end) {
        let first = null;
        let last = null;
        let start = 0;
        for (const part of this.parts) {
            if (part.end > at && start < end) {
                first ??= part.first;
                last = part.last;
            }
            start = part.end;
        }
        return first === null ? null : {first, last};
    }

    // The place in the text at which a token's part begins.
    start(token) {
        const k = this.parts.findIndex((part) => part.last >= token);
        return k > 0 ? this.parts[k - 1].end : 0;
    }
}

export class Chat {
    constructor(api, settings, view) {
        this.api = api;
        this.settings = settings;
        this.view = view;
        this.traces = new WeakMap();  // message -> Trace
        this.list = byId('messages');
        this.scroll = byId('scroll');
        this.text = byId('text');
        this.running = null;
        this.continues = false;  // does the model continue texts?
        this.listen();
        this.open(newChat());
    }

    listen() {
        byId('composer').addEventListener('submit', (event) => {
            event.preventDefault();
            this.submit();
        });
        this.text.addEventListener('keydown', (event) => {
            // While an input method composes a word, Enter chooses it.
            if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            this.submit();
        });
        this.text.addEventListener('input', () => this.grow());
        byId('stop').addEventListener('click', () => this.stop());
        document.addEventListener('keydown', (event) => {
            if (event.key === 'Escape' && !document.querySelector('dialog[open]')) this.stop();
        });
        this.list.addEventListener('pointerover', (event) => this.enter(event.target));
        this.list.addEventListener('pointerout', (event) => this.leave(event.target));
        this.list.addEventListener('focusin', (event) => this.enter(event.target));
        this.list.addEventListener('focusout', (event) => this.leave(event.target));
        this.list.addEventListener('keydown', (event) => this.walk(event));
    }

    grow() {
        this.text.style.height = 'auto';
        this.text.style.height = `${Math.min(this.text.scrollHeight, 200)}px`;
    }

    // --- Conversations ------------------------------------------------------------------------

    // Is this conversation a text that the model continues? Its messages are parts of it then.
    get isText() { return this.chat.messages.length ? this.chat.kind === 'text' : this.continues; }

    // The model is another one. A conversation that has begun stays what it is.
    suit(continues) {
        this.continues = continues;
        if (!this.running) this.render();
    }

    open(chat) {
        this.stop();
        this.chat = chat;
        notice('');
        this.render();
        this.scroll.scrollTop = this.scroll.scrollHeight;
    }

    remove(id) {
        if (id === this.chat.id) {
            this.stop();
            this.chat = newChat();
            this.render();
        }
        deleteChat(id);
    }

    save(chat) {
        if (!saveChat(chat))
            notice(
                'This browser\'s storage is full: the conversation is not kept. Delete old ones.');
    }

    render() {
        const {messages} = this.chat;
        const {isText} = this;
        this.list.classList.toggle('text', isText && messages.length > 0);
        this.text.placeholder = !isText ? 'Write a message' :
            messages.length             ? 'Write on, or press Enter for more' :
                                          'Begin a text';
        let edit = null;  // of the user's last part of a text
        const shown = messages.map((message, i) => {
            if (message.role === 'user') {
                const last = i >= messages.length - 2 && !this.running;
                const onedit = last ? (e) => this.edit(message, e) : null;
                // In a text the button is not between the words, but below.
                const element = userMessage(message, isText ? null : onedit, isText);
                edit = isText && last ? () => this.edit(message, element) : null;
                return element;
            }
            const answer = new Answer(message, this.traces.get(message), isText);
            const last = i === messages.length - 1 && !this.running;
            answer.done(last ? () => this.regenerate() : null, last ? edit : null);
            return answer.element;
        });
        if (!messages.length) {
            shown.push(greeting(
                isText ? 'Begin a text, and watch which neurons continue it.' :
                         'Ask something, and watch which neurons answer.',
                isText ? BEGINNINGS : PROMPTS, (prompt) => this.send(prompt)));
        } else if (messages.at(-1).role === 'user' && !this.running) {
            const [words, button] = isText ? ['Nothing follows this text yet.', 'Continue it'] :
                                             ['This message has no answer yet.', 'Answer it'];
            shown.push(problem(words, [[button, () => this.answer()]]));
        }
        this.list.replaceChildren(...shown);
    }

    // --- Sending ------------------------------------------------------------------------------

    submit() {
        // Spaces are part of a text, and without a word the model goes on with it.
        const text = this.isText ? this.text.value : this.text.value.trim();
        const goesOn = this.isText && this.chat.messages.length && !text;
        if ((!text.trim() && !goesOn) || this.running) return;
        this.text.value = '';
        this.grow();
        if (goesOn)
            this.answer();
        else
            this.send(text);
    }

    send(text) {
        if (this.running) return;
        const {messages} = this.chat;
        const {isText} = this;
        if (!messages.length && isText) this.chat.kind = 'text';
        if (!messages.length && !isText) delete this.chat.kind;
        messages.push({role: 'user', content: isText ? this.joint(text) + text : text});
        this.answer();
    }

    // What a part of a text begins on a line of its own with, unless it begins with a space.
    joint(text) {
        const before = this.chat.messages.at(-1)?.content;
        return !before || /\s$/.test(before) || /^\s/.test(text) ? '' : '\n';
    }

    regenerate() {
        if (this.running) return;
        if (this.chat.messages.at(-1)?.role === 'assistant') this.chat.messages.pop();
        this.answer();
        this.text.focus();
    }

    edit(message, element) {
        const {messages} = this.chat;
        editMessage(
            element, message.content,
            (text) => {
                messages.splice(messages.indexOf(message));
                this.send(text);
                this.text.focus();
            },
            () => {
                this.render();
                this.text.focus();
            },
            this.isText);
    }

    stop() { this.running?.abort(); }

    body() {
        if (this.isText) {
            const prompt = this.chat.messages.map(({content}) => content).join('');
            return {
                model: this.settings.model,
                prompt,
                max_tokens: WRITTEN,
                ...this.settings.sampling(),
            };
        }
        const messages = this.chat.messages.map(({role, content}) => ({role, content}));
        if (this.settings.system) messages.unshift({role: 'system', content: this.settings.system});
        return {model: this.settings.model, messages, ...this.settings.sampling()};
    }

    async answer() {
        const {chat} = this;
        const body = this.body();
        const control = this.running = new AbortController();
        this.busy(true);
        notice('');
        this.render();
        this.save(chat);
        const message = {role: 'assistant', content: '', model: this.settings.model};
        const trace = new Trace();
        const element = new Answer(message, trace, this.isText);
        this.traces.set(message, trace);
        element.running(0, 0);
        this.list.append(element.element);
        this.follow(true);
        this.view.begin();
        say('The model answers.');
        let failure = null;
        try {
            await this.receive(body, control.signal, message, trace, element);
        } catch (error) {
            if (control.signal.aborted)
                message.stopped = true;
            else
                failure = error;
        }
        this.running = null;
        this.busy(false);
        this.view.end();
        // Stopped before the first word, or failed: there is nothing to keep.
        if (message.content || (!failure && !message.stopped)) chat.messages.push(message);
        this.save(chat);
        if (this.chat !== chat) return;
        const atEnd = this.atEnd();
        this.render();
        if (failure) this.explain(failure, message);
        this.follow(atEnd);
        if (!failure)
            say(message.content ? message.content.slice(0, 4000) : 'The answer is empty.');
    }

    async receive(body, signal, message, trace, element) {
        let began = 0;
        let tokens = 0;
        let drawn = true;
        const draw = () => {
            drawn = true;
            if (signal.aborted || this.running?.signal !== signal) return;
            const atEnd = this.atEnd();
            element.show();
            element.running(tokens, (performance.now() - began) / 1000);
            this.follow(atEnd);
        };
        for await (const chunk of this.api.chat(body, signal)) {
            const choice = chunk.choices?.[0];
            const piece = choice?.delta?.content ?? choice?.text;
            if (piece) {
                began ||= performance.now();
                message.content += piece;
                tokens += 1;
            }
            if (chunk.view) {
                if (trace.request === undefined) this.view.claim(chunk.view.request);
                trace.add(message.content.length, chunk.view);
                tokens = chunk.view.token + 1;
            }
            if (chunk.timings) message.timings = chunk.timings;
            // Many chunks may come within one frame of the screen.
            if (drawn) {
                drawn = false;
                requestAnimationFrame(draw);
            }
        }
    }

    explain(error, message) {
        const text = error.status !== undefined ? error.message :
                                                  `The page made a mistake: ${error.message}`;
        const buttons =
            [['Try again', () => (message.content ? this.regenerate() : this.answer())]];
        if (error.status === 401) buttons.push(['Enter the key', () => this.settings.open('key')]);
        // The last message has no answer: the card says why, in place of the one that render added.
        this.list.querySelector('.problem')?.remove();
        this.list.append(problem(text, buttons));
    }

    busy(running) {
        byId('send').hidden = running;
        byId('stop').hidden = !running;
        if (running)
            this.list.setAttribute('aria-busy', 'true');
        else
            this.list.removeAttribute('aria-busy');
    }

    atEnd() {
        return this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < 80;
    }

    follow(atEnd) {
        if (atEnd) this.scroll.scrollTop = this.scroll.scrollHeight;
    }

    // --- Words and their neurons --------------------------------------------------------------

    traceOf(element) {
        const index =
            [...this.list.querySelectorAll('.message')].indexOf(element.closest('.message'));
        return this.traces.get(this.chat.messages[index]);
    }

    enter(target) {
        if (!target.matches?.('.w') || this.running) return;
        const trace = this.traceOf(target);
        const tokens = trace?.find(Number(target.dataset.at), Number(target.dataset.end));
        if (tokens &&
            this.view.hold(trace.request, tokens.first, tokens.last, target.textContent)) {
            target.classList.add('held');
        }
    }

    leave(target) {
        if (!target.matches?.('.w')) return;
        target.classList.remove('held');
        if (!this.running) this.view.release();
    }

    walk(event) {
        const body = event.target.closest?.('.answer .body');
        const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
        if (!body || !step || event.target.closest('pre[tabindex]') === event.target) return;
        const words = [...body.querySelectorAll('.w')];
        const at = words.indexOf(event.target);
        const next = at < 0 && step < 0 ? null : words[at + step];
        if (!next) return;
        event.preventDefault();
        next.focus();
    }

    // Marks the words of a step while an answer is played again.
    mark(step) {
        for (const old of this.list.querySelectorAll('.w.held')) old.classList.remove('held');
        if (!step) return;
        const body = this.list.querySelector('.answer:last-of-type .body');
        const trace = body && this.traceOf(body);
        if (!trace || trace.request !== step.request) return;
        for (const word of body.querySelectorAll('.w')) {
            const tokens = trace.find(Number(word.dataset.at), Number(word.dataset.end));
            if (tokens && tokens.last >= step.first && tokens.first <= step.token)
                word.classList.add('held');
        }
    }
}
