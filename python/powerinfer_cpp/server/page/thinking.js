// The switch for thoughts. It is there for models whose chats can be asked for with and without
// them, which the server says, and begins as the server would do by itself.

import {byId} from './dom.js';

export class Thinking {
    constructor(api, settings) {
        this.api = api;
        this.settings = settings;
        this.byItself = null;  // does the model think where a request says nothing? null: no choice
        this.button = byId('think');
        this.button.addEventListener('click', () => {
            this.settings.choose(this.name, !this.on);
            this.show();
        });
    }

    get on() { return this.settings.thinks(this.name) ?? this.byItself; }

    async open(name) {
        this.name = name;
        this.byItself = null;
        this.show();
        try {
            const path = `props?model=${encodeURIComponent(name)}`;
            const found = (await (await this.api.request(path)).json()).enable_thinking;
            if (this.name === name && typeof found === 'boolean') this.byItself = found;
        } catch {
            // Without an answer there is no switch, and the server decides.
        }
        this.show();
    }

    show() {
        this.button.hidden = this.byItself === null;
        this.button.setAttribute('aria-pressed', String(Boolean(this.on)));
        this.button.title = this.on ? 'The model thinks before it answers' :
                                      'The model answers without thinking first';
    }

    // What a request for a chat says of it: nothing unless somebody chose.
    asked() {
        const chosen = this.byItself === null ? undefined : this.settings.thinks(this.name);
        return chosen === undefined ? {} : {enable_thinking: chosen};
    }
}
