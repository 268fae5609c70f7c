// The messages of a conversation as elements.

import {icon, iconButton, make, say} from './dom.js';
import {PlainText, Rendered} from './markdown.js';
import {rate, whole} from './words.js';

async function copy(text) {
    try {
        await navigator.clipboard.writeText(text);
        say('Copied.');
    } catch {
        say('The browser did not allow copying.');
    }
}

// isText: a part of a text that the model continues.
export function userMessage(message, onedit, isText = false) {
    const body = make('div', {className: 'body'}, message.content);
    const element = make('article', {className: 'message user'}, body);
    element.setAttribute('aria-label', isText ? 'Your text' : 'You');
    if (onedit) {
        element.append(make(
            'div', {className: 'actions'},
            iconButton('edit', 'Edit and send again', () => onedit(element))));
    }
    return element;
}

// Replaces a message by a field with its text. exact: spaces around it are part of it.
export function editMessage(element, text, onsend, oncancel, exact = false) {
    const field = make('textarea', {value: text, rows: 3});
    field.setAttribute('aria-label', 'Edit your message');
    const send = () => field.value.trim() && onsend(exact ? field.value : field.value.trim());
    field.addEventListener('keydown', (event) => {
        if (event.isComposing) return;
        if (event.key === 'Enter' && !event.shiftKey) {
            event.preventDefault();
            send();
        } else if (event.key === 'Escape') {
            event.stopPropagation();
            oncancel();
        }
    });
    element.classList.add('editing');
    element.replaceChildren(
        field,
        make(
            'div', {className: 'actions'},
            make('button', {type: 'button', className: 'text', onclick: oncancel}, 'Cancel'),
            make('button', {type: 'button', className: 'text strong', onclick: send}, 'Send')));
    field.focus();
    field.setSelectionRange(text.length, text.length);
}

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
        const {content} = this.message;
        this.rendered.show(content);
        this.element.classList.toggle('empty', !content);
    }

    running(tokens, seconds) {
        this.element.classList.add('running');
        this.meta.textContent =
            tokens > 1 && seconds > 0.3 ? `${rate(tokens / seconds)} tokens/s` : '';
    }

    // The answer stands. `again` regenerates it, `edit` changes what it continues.
    done(again, edit = null) {
        this.element.classList.remove('running');
        this.show();
        const {timings, stopped, content} = this.message;
        const parts = [];
        if (!content) parts.push('The model ended without a word.');
        if (stopped) parts.push('stopped');
        if (timings?.predicted_n) {
            parts.push(`${rate(timings.predicted_per_second)} tokens/s, ${
                whole(timings.predicted_n)} tokens`);
        }
        if (timings?.prompt_n) {
            parts.push(`prompt ${rate(timings.prompt_per_second)} tokens/s, ${
                whole(timings.prompt_n)} tokens`);
        }
        this.meta.textContent = parts.join(' · ');
        this.actions.replaceChildren(
            iconButton('copy', 'Copy the answer', () => copy(this.message.content)));
        if (edit) this.actions.append(iconButton('edit', 'Edit and send again', edit));
        if (again) this.actions.append(iconButton('again', 'Regenerate', again));
    }
}

// What went wrong, in words, with what can be done about it.
export function problem(text, buttons) {
    const element = make('div', {className: 'problem'}, make('p', {}, text));
    element.setAttribute('role', 'alert');
    element.append(make(
        'div', {className: 'actions'},
        ...buttons.map(
            ([label, onclick]) =>
                (make('button', {type: 'button', className: 'text strong', onclick}, label)))));
    return element;
}

export function greeting(words, prompts, choose) {
    return make(
        'div', {className: 'greeting'}, make('h2', {}, words),
        make(
            'ul', {},
            ...prompts.map(
                (prompt) => (make(
                    'li', {},
                    make('button', {type: 'button', onclick: () => choose(prompt)}, prompt))))));
}

export function chatRow(name, when, current, {open, json, markdown, remove}) {
    const main = make(
        'button', {type: 'button', className: 'chat-open', onclick: open},
        make('span', {className: 'chat-title'}, name),
        make('span', {className: 'chat-when'}, when));
    if (current) main.setAttribute('aria-current', 'true');
    const small = (label, what, onclick) => {
        const button =
            make('button', {type: 'button', className: 'text', title: what, onclick}, label);
        button.setAttribute('aria-label', what);
        return button;
    };
    const bin = make(
        'button', {type: 'button', className: 'icon', title: `Delete “${name}”`, onclick: remove},
        icon('trash'));
    bin.setAttribute('aria-label', `Delete “${name}”`);
    return make(
        'li', {}, main,
        make(
            'div', {className: 'chat-tools'}, small('JSON', `Export “${name}” as JSON`, json),
            small('Markdown', `Export “${name}” as Markdown`, markdown), bin));
}
