// The messages of a conversation as elements.

import {icon, iconButton, make} from './dom.js';

// ‹ 2/3 › for a message that has versions. `can`: {version, turn}.
export function versions({version: {number, many, what}, turn}) {
    const button = (sign, which, step) => {
        const made =
            make('button', {type: 'button', className: 'step', onclick: () => turn(step)}, sign);
        made.title = `${which} version of the ${what}`;
        made.setAttribute('aria-label', made.title);
        return made;
    };
    const element = make(
        'div', {className: 'versions'}, button('‹', 'Previous', -1),
        make('span', {}, `${number}/${many}`), button('›', 'Next', 1));
    element.setAttribute('role', 'group');
    element.setAttribute('aria-label', `Version ${number} of ${many} of the ${what}`);
    return element;
}

// can: what can be done, {edit, version, turn}. isText: a part of a text that the model continues.
export function userMessage(message, can, isText = false) {
    const body = make('div', {className: 'body'}, message.content);
    const element = make('article', {className: 'message user'}, body);
    element.setAttribute('aria-label', isText ? 'Your text' : 'You');
    if (can) {
        const tools = make('div', {className: 'actions'});
        tools.append(iconButton('edit', 'Edit and send again', () => can.edit(element)));
        if (can.version) tools.append(versions(can));
        element.append(tools);
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
