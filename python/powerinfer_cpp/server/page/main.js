// Puts the page together.

import {Api} from './api.js';
import {Chat} from './chat.js';
import {byId, download, fileName, make, notice} from './dom.js';
import {chatRow} from './messages.js';
import {bindSaving} from './save.js';
import {Settings} from './settings.js';
import {chats, keepTab, modelOf, newChat, tab, title} from './store.js';
import {colourWith} from './text/colours.js';
import {Thinking} from './thinking.js';
import {allAsJson, asJson, asMarkdown, importFile} from './transfer.js';
import {View} from './view.js';

const settings = new Settings();
const api = new Api(settings);
const view = new View(api, settings);
const thinking = new Thinking(api, settings);
colourWith((language, code) => api.highlight(language, code));
const chat = new Chat(api, settings, view, thinking);

// --- Models ----------------------------------------------------------------------------------

let models = new Map();  // by name, what the server says of them

// The chat, the view and the switch for thoughts follow.
async function choose(name) {
    settings.model = name;
    keepTab({model: name});
    byId('model').value = name;
    chat.suit(models.get(name).continues);
    if (models.get(name).loads) return;
    thinking.open(name);
    await view.open(name);
    chat.greet();
}

async function loadModels() {
    const select = byId('model');
    try {
        models = new Map((await api.models()).map((model) => [model.name, model]));
        const names = [...models.keys()];
        select.replaceChildren(...names.map((name) => make('option', {value: name}, name)));
        select.disabled = names.length < 2;
        notice(names.length ? '' : 'The server has no model.');
        if (!names.length) return;
        // A tab goes on with its own, a conversation with the one that answered.
        const wanted = [tab().model, modelOf(chat.chat), settings.model, names[0]];
        choose(wanted.find((name) => models.has(name)));
        if (!models.get(settings.model).loads) return;
        notice('The server still loads the model.');
        setTimeout(loadModels, 2000);
    } catch (error) {
        notice(error.message);
        const again = () => loadModels();
        // With a key the server may tell more; without an answer it may still be starting.
        if (error.status === 401)
            byId('settings').addEventListener('close', again, {once: true});
        else
            setTimeout(again, 5000);
    }
}

byId('model').addEventListener('change', (event) => {
    chat.stop();
    choose(event.target.value);
});

// --- Conversations ---------------------------------------------------------------------------

function fillChats() {
    const dialog = byId('chats');
    const when = new Intl.DateTimeFormat(undefined, {dateStyle: 'medium', timeStyle: 'short'});
    const rows = chats().map((kept) => {
        const name = title(kept);
        return chatRow(name, when.format(kept.changed), kept.id === chat.chat.id, {
            open: () => {
                dialog.close();
                if (kept.id === chat.chat.id) return;
                chat.open(kept);
                const name = modelOf(kept);
                if (models.has(name) && name !== settings.model) choose(name);
            },
            json: () => download(
                new Blob([asJson(kept)], {type: 'application/json'}), fileName(name, 'json')),
            markdown: () => download(
                new Blob([asMarkdown(kept)], {type: 'text/markdown'}), fileName(name, 'md')),
            remove: () => {
                chat.remove(kept.id);
                fillChats();
                dialog.querySelector('[data-close]').focus();
            },
        });
    });
    if (!rows.length) rows.push(make('li', {className: 'none'}, 'There are none yet.'));
    byId('chat-list').replaceChildren(...rows);
    byId('export-chats').disabled = !chats().length;
}

byId('open-chats').addEventListener('click', () => {
    byId('chats-said').textContent = '';
    fillChats();
    byId('chats').showModal();
});

byId('new-chat').addEventListener('click', () => {
    chat.open(newChat());
    byId('text').focus();
});

byId('export-chats').addEventListener('click', () => {
    const day = new Date().toISOString().slice(0, 10);
    download(
        new Blob([allAsJson()], {type: 'application/json'}),
        fileName(`conversations-${day}`, 'json'));
});

byId('import-chats').addEventListener('click', () => byId('chats-file').click());
byId('chats-file').addEventListener('change', async ({target}) => {
    const [file] = target.files;
    if (!file) return;
    const words = await importFile(file);
    target.value = '';  // the same file may be chosen again
    fillChats();
    byId('chats-said').textContent = words;
});

// --- Dialogs and the view --------------------------------------------------------------------

for (const dialog of document.querySelectorAll('dialog')) {
    dialog.querySelector('[data-close]')?.addEventListener('click', () => dialog.close());
    // A click beside a dialog closes it.
    dialog.addEventListener('click', (event) => {
        if (event.target === dialog) dialog.close();
    });
}

bindSaving(view, (step) => chat.mark(step));
byId('replay').addEventListener('click', () => {
    view.replay(Math.max(1500, 67 * view.memory.all(view.own).length), (step) => chat.mark(step));
});

loadModels();
if (matchMedia('(pointer: fine)').matches) byId('text').focus();
