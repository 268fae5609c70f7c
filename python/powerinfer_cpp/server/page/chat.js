// A conversation: sending, stopping, answering again, and which words came from which tokens.

import {Answer} from './answer.js';
import {fork, turn, version} from './branches.js';
import {byId, notice, say} from './dom.js';
import {editMessage, greeting, problem, userMessage, versions} from './messages.js';
import {keepTab, newChat, remove, saveChat, stored, tab} from './store.js';

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

// Is there anything in an answer?
const said = ({content, reasoning_content, tool_calls}) =>
    Boolean(content || reasoning_content || tool_calls);

// Adds the parts of calls that a chunk brings.
function addCalls(message, parts) {
    const calls = message.tool_calls ??= [];
    for (const {index = 0, id, type, function: part = {}} of parts) {
        while (calls.length <= Math.min(index, 127))
            calls.push({id: '', type: 'function', function: {name: '', arguments: ''}});
        const call = calls[Math.min(index, 127)];
        if (id) call.id = id;
        if (type) call.type = type;
        call.function.name += part.name ?? '';
        call.function.arguments += part.arguments ?? '';
    }
}

// Puts an answer at messages[i]; what stands there becomes a version beside it.
function place(messages, i, message) {
    const branches = fork(messages, i);
    messages.push(message);
    if (branches) message.branches = branches;
}

export class Chat {
    constructor(api, settings, view, thinking) {
        this.api = api;
        this.settings = settings;
        this.view = view;
        this.thinking = thinking;
        this.traces = new WeakMap();  // message -> Trace
        this.list = byId('messages');
        this.scroll = byId('scroll');
        this.text = byId('text');
        this.running = null;
        this.begun = null;       // the answer that is being written: {chat, message, i}
        this.shown = Infinity;   // how many messages are shown while an answer comes
        this.continues = false;  // does the model continue texts?
        this.listen();
        this.open(stored(tab().chat) ?? newChat());
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
        this.list.addEventListener('pointerover', (event) => this.enter(event));
        this.list.addEventListener('pointerout', (event) => this.leave(event));
        this.list.addEventListener('focusin', (event) => this.enter(event));
        this.list.addEventListener('focusout', (event) => this.leave(event));
        // A page that is hidden may not come back.
        addEventListener('pagehide', () => {
            this.saveBegun();
            this.stop();
        });
        document.addEventListener('visibilitychange', () => document.hidden && this.saveBegun());
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

    // The live view knows the model now.
    greet() {
        if (!this.running && !this.chat.messages.length) this.render();
    }

    open(chat) {
        this.stop();
        notice('');
        this.turnTo(chat);
        this.scroll.scrollTop = this.scroll.scrollHeight;
    }

    turnTo(chat) {
        this.shown = Infinity;
        this.chat = chat;
        keepTab({chat: chat.id});
        this.render();
    }

    remove(id) {
        if (id === this.chat.id) {
            this.stop();
            this.turnTo(newChat());
        }
        remove(id);
    }

    save(chat) {
        if (!saveChat(chat))
            notice(
                'This browser\'s storage is full: the conversation is not kept. Delete old ones.');
    }

    // Saves what an answer that is being written has so far.
    saveBegun() {
        if (!this.begun || !said(this.begun.message)) return;
        const {chat, message, i} = this.begun;
        const copy = structuredClone(chat);
        place(copy.messages, i, {...message, stopped: true});
        saveChat(copy);
    }

    render() {
        const {isText} = this;
        const messages = this.chat.messages.slice(0, this.shown);
        this.list.classList.toggle('text', isText && messages.length > 0);
        this.text.placeholder = !isText ? 'Write a message' :
            messages.length             ? 'Write on, or press Enter for more' :
                                          'Begin a text';
        const shown = messages.map((message, i) => this.element(message, i));
        if (!messages.length) {
            const words = isText ? 'Begin a text' : 'Ask something';
            const watch = isText ? ', and watch which neurons continue it.' :
                                   ', and watch which neurons answer.';
            shown.push(greeting(
                words + (this.view.dense ? '.' : watch), isText ? BEGINNINGS : PROMPTS,
                (prompt) => this.send(prompt)));
        } else if (messages.at(-1).role === 'user' && !this.running) {
            const [words, button] = isText ? ['Nothing follows this text yet.', 'Continue it'] :
                                             ['This message has no answer yet.', 'Answer it'];
            const card = problem(words, [[button, () => this.answer()]]);
            const others = isText && this.versions(messages.length - 1, 'text');
            if (others) card.append(versions(others));
            shown.push(card);
        }
        this.list.replaceChildren(...shown);
    }

    // A message as an element, with what can be done about it.
    element(message, i) {
        const {messages} = this.chat;
        const {isText, running} = this;
        if (message.role === 'user') {
            // In a text the buttons are not between the words, but below.
            const can = !isText && {edit: (e) => this.edit(i, e), ...this.versions(i, 'message')};
            return userMessage(message, running ? null : can, isText);
        }
        const answer = new Answer(message, this.traces.get(message), isText);
        const last = i === messages.length - 1;
        if (running || (isText && !last)) {
            answer.done({});
            return answer.element;
        }
        const can = {again: () => this.regenerate(i), ...this.versions(i, 'answer')};
        if (isText && messages[i - 1]?.role === 'user') {
            const before = () => this.list.querySelectorAll('.message')[i - 1];
            can.before = {edit: () => this.edit(i - 1, before()), ...this.versions(i - 1, 'text')};
        }
        answer.done(can);
        return answer.element;
    }

    // {version, turn} for a message that has others beside it.
    versions(i, what) {
        const found = version(this.chat.messages[i]);
        return found && {version: {...found, what}, turn: (step) => this.turn(i, step, what)};
    }

    // Shows another version of a message and of what followed it.
    turn(i, step, what) {
        if (this.running) return;
        turn(this.chat.messages, i, step);
        this.save(this.chat);
        const top = this.scroll.scrollTop;
        this.render();
        this.scroll.scrollTop = top;
        const {number, many} = version(this.chat.messages[i]);
        say(`Version ${number} of ${many}`);
        const which = step < 0 ? 'Previous' : 'Next';
        const buttons = this.list.querySelectorAll(`.message:nth-child(n + ${
            i + 1}) button[aria-label='${which} version of the ${what}']`);
        buttons[0]?.focus();
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

    // branches: of the versions beside this message.
    send(text, branches) {
        if (this.running) return;
        const {messages} = this.chat;
        const {isText} = this;
        if (!messages.length && isText) this.chat.kind = 'text';
        if (!messages.length && !isText) delete this.chat.kind;
        const message = {role: 'user', content: isText ? this.joint(text) + text : text};
        messages.push(branches ? {...message, branches} : message);
        this.answer();
    }

    // What a part of a text begins on a line of its own with, unless it begins with a space.
    joint(text) {
        const before = this.chat.messages.at(-1)?.content;
        return !before || /\s$/.test(before) || /^\s/.test(text) ? '' : '\n';
    }

    // Answers again. The answer that stands stays as a version, with all that follows it.
    regenerate(i) {
        if (this.running) return;
        this.answer(i);
        this.text.focus();
    }

    edit(i, element) {
        const {messages} = this.chat;
        editMessage(
            element, messages[i].content,
            (text) => {
                this.send(text, fork(messages, i));
                this.text.focus();
            },
            () => {
                this.render();
                this.text.focus();
            },
            this.isText);
    }

    stop() { this.running?.abort(); }

    // What asks for a continuation of these messages.
    body(before) {
        if (this.isText) {
            const prompt = before.map(({content}) => content).join('');
            return {
                model: this.settings.model,
                prompt,
                max_tokens: WRITTEN,
                ...this.settings.sampling(),
            };
        }
        const messages = before.map(({role, content, reasoning_content, tool_calls}) => ({
                                        role,
                                        content,
                                        ...(reasoning_content ? {reasoning_content} : {}),
                                        ...(tool_calls ? {tool_calls} : {}),
                                    }));
        if (this.settings.system) messages.unshift({role: 'system', content: this.settings.system});
        return {
            model: this.settings.model,
            messages,
            ...this.settings.sampling(),
            ...this.thinking.asked(),
        };
    }

    // Asks for the message at `i`. One that stands there is put aside when the new one has a word.
    async answer(i = this.chat.messages.length) {
        const {chat} = this;
        const {messages} = chat;
        const body = this.body(messages.slice(0, i));
        const control = this.running = new AbortController();
        this.shown = i;
        this.busy(true);
        notice('');
        this.render();
        this.save(chat);
        const message = {role: 'assistant', content: '', model: this.settings.model};
        const trace = new Trace();
        this.begun = {chat, message, i};
        const element = new Answer(message, trace, this.isText);
        this.traces.set(message, trace);
        element.running(0, 0);
        this.list.append(element.element);
        this.follow(true);
        say('The model answers.');
        let failure = null;
        try {
            await this.view.ready();
            this.view.begin();
            await this.receive(body, control.signal, message, trace, element);
        } catch (error) {
            if (control.signal.aborted)
                message.stopped = true;
            else
                failure = error;
        }
        element.thought();
        this.running = this.begun = null;
        this.shown = Infinity;
        this.busy(false);
        this.view.end(message.timings?.predicted_per_second);
        // Stopped before the first word, or failed: there is nothing to keep.
        if (said(message) || (!failure && !message.stopped)) place(messages, i, message);
        this.save(chat);
        if (this.chat !== chat) {
            this.render();  // what stood there while this ran could not be edited
            return;
        }
        const atEnd = this.atEnd();
        this.render();
        if (failure) this.explain(failure, i);
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
            const seconds = (performance.now() - began) / 1000;
            element.show();
            element.running(tokens, seconds);
            if (tokens > 1 && seconds > 0.3) this.view.speed(tokens / seconds);
            this.follow(atEnd);
        };
        for await (const chunk of this.api.chat(body, signal)) {
            const choice = chunk.choices?.[0];
            const delta = choice?.delta ?? {};
            const piece = delta.content ?? choice?.text;
            const thought = delta.reasoning_content;
            if (thought) {
                message.reasoning_content = (message.reasoning_content ?? '') + thought;
                element.thinks();
            }
            if (piece || delta.tool_calls) element.thought();
            if (piece) message.content += piece;
            if (delta.tool_calls) addCalls(message, delta.tool_calls);
            if (piece || thought || delta.tool_calls) {
                began ||= performance.now();
                tokens += 1;
            }
            // A text is cut off each time, and goes on with Enter.
            if (choice?.finish_reason === 'length' && !this.isText) message.cut = true;
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

    // i: where the message stands that failed.
    explain(error, i) {
        const text = error.status !== undefined ? error.message :
                                                  `The page made a mistake: ${error.message}`;
        const buttons = [['Try again', () => this.answer(i)]];
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

    // The word of an event that did not come from within it: parts of words have colours in code.
    word({target, relatedTarget}) {
        const word = target.closest?.('.w');
        return word?.contains(relatedTarget) ? null : word;
    }

    enter(event) {
        const word = this.word(event);
        if (!word || this.running) return;
        const trace = this.traceOf(word);
        const tokens = trace?.find(Number(word.dataset.at), Number(word.dataset.end));
        if (tokens && this.view.hold(trace.request, tokens.first, tokens.last, word.textContent))
            word.classList.add('held');
    }

    leave(event) {
        const word = this.word(event);
        if (!word) return;
        word.classList.remove('held');
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
