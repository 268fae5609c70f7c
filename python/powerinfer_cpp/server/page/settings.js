// The settings dialog. Empty numbers are not sent, so the server's own defaults hold.

import {byId} from './dom.js';
import {isObject, local, readJson, session, writeJson, writeText} from './store.js';

const KEY = 'powerinfer.settings';
const API_KEY = 'powerinfer.key';
const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];

export class Settings {
    constructor(onchange) {
        const kept = readJson(local, KEY);
        this.values = isObject(kept) ? kept : {};
        this.onchange = onchange;
        this.dialog = byId('settings');
        this.form = byId('settings-form');
        this.form.addEventListener('input', () => this.take());
        byId('open-settings').addEventListener('click', () => this.open());
        byId('reset-settings').addEventListener('click', () => this.reset());
        byId('toggle-theme').addEventListener('click', () => this.toggleTheme());
        this.fill();
    }

    get model() { return this.values.model; }
    set model(name) { this.keep({model: name}); }
    get system() { return (this.values.system || '').trim(); }
    get view() { return this.values.view !== false; }
    set view(shown) { this.keep({view: shown}); }
    get folded() { return this.values.folded === true; }
    set folded(folded) { this.keep({folded}); }
    // Shall this model think? undefined: nobody chose.
    thinks(model) {
        const {thinking} = this.values;
        return Object.hasOwn(thinking ?? {}, model) ? thinking[model] === true : undefined;
    }
    choose(model, on) { this.keep({thinking: {...this.values.thinking, [model]: on}}); }
    get key() { return session.getItem(API_KEY) || ''; }

    // What a request carries besides model and messages.
    sampling() {
        const given = NUMBERS.filter((name) => Number.isFinite(this.values[name]));
        return Object.fromEntries(given.map((name) => [name, this.values[name]]));
    }

    open(name) {
        this.fill();
        this.dialog.showModal();
        if (name) this.form.elements[name].focus();
    }

    fill() {
        const {elements} = this.form;
        for (const name of NUMBERS) {
            elements[name].value = this.values[name] ?? '';
            elements[name].placeholder = 'default';
        }
        elements.system.value = this.values.system || '';
        elements.key.value = this.key;
        elements.theme.value = this.values.theme || 'auto';
    }

    take() {
        const {elements} = this.form;
        const next = {system: elements.system.value, theme: elements.theme.value};
        for (const name of NUMBERS) {
            const {value, validity} = elements[name];
            next[name] = value !== '' && validity.valid ? Number(value) : undefined;
        }
        if (elements.key.value)
            writeText(session, API_KEY, elements.key.value);
        else
            session.removeItem(API_KEY);
        this.keep(next);
    }

    reset() {
        session.removeItem(API_KEY);
        const none = Object.fromEntries(NUMBERS.map((name) => [name, undefined]));
        this.keep({...none, system: '', theme: 'auto'});
        this.fill();
    }

    keep(next) {
        Object.assign(this.values, next);
        writeJson(local, KEY, this.values);
        const {theme} = this.values;
        if (theme === 'light' || theme === 'dark')
            document.documentElement.dataset.theme = theme;
        else
            delete document.documentElement.dataset.theme;
        this.onchange?.();
    }

    toggleTheme() {
        const chosen = document.documentElement.dataset.theme;
        const dark =
            chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
        this.keep({theme: dark ? 'light' : 'dark'});
    }
}
