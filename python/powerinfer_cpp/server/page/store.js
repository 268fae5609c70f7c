// Conversations in localStorage, each under its own key: two tabs do not overwrite each other's.

const PREFIX = 'powerinfer.chat.';

// Storage may be switched off, and then even asking for it throws. The page works without.
function open(name) {
    try {
        const storage = window[name];
        storage.getItem(PREFIX);
        return storage;
    } catch {
        const kept = new Map();
        return {
            get length() { return kept.size; },
            key: (i) => [...kept.keys()][i],
            getItem: (key) => kept.get(key) ?? null,
            setItem: (key, value) => kept.set(key, value),
            removeItem: (key) => kept.delete(key),
        };
    }
}

export const local = open('localStorage');
export const session = open('sessionStorage');

export function readJson(storage, key) {
    try {
        return JSON.parse(storage.getItem(key));
    } catch {
        return null;
    }
}

export function writeJson(storage, key, value) {
    try {
        storage.setItem(key, JSON.stringify(value));
        return true;
    } catch {
        return false;  // full
    }
}

const isMessage = (m) =>
    m && typeof m.content === 'string' && ['user', 'assistant'].includes(m.role);

function valid(chat) {
    return chat && typeof chat.id === 'string' && Array.isArray(chat.messages) &&
        chat.messages.every(isMessage);
}

export function newChat() {
    const now = Date.now();
    // Not crypto.randomUUID: browsers have it only on https and localhost.
    const id = `${now.toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
    return {id, created: now, changed: now, messages: []};
}

// All conversations, the newest first.
export function chats() {
    const found = [];
    for (let i = 0; i < local.length; i++) {
        const key = local.key(i);
        if (!key?.startsWith(PREFIX)) continue;
        const chat = readJson(local, key);
        if (valid(chat)) found.push(chat);
    }
    return found.sort((a, b) => b.changed - a.changed);
}

// False if the browser's space is used up.
export function saveChat(chat) {
    if (!chat.messages.length) return true;
    chat.changed = Date.now();
    return writeJson(local, PREFIX + chat.id, chat);
}

export function deleteChat(id) { local.removeItem(PREFIX + id); }

export function title(chat) {
    const first = chat.messages.find((m) => m.role === 'user');
    const text = first ? first.content.trim().replace(/\s+/g, ' ') : '';
    return text.length > 64 ? `${text.slice(0, 63).trimEnd()}…` : text || 'New conversation';
}

export function asJson(chat) { return JSON.stringify({title: title(chat), ...chat}, null, 2); }

export function asMarkdown(chat) {
    if (chat.kind === 'text') return `${chat.messages.map(({content}) => content).join('')}\n`;
    const parts = [`# ${title(chat)}`];
    for (const {role, content, model} of chat.messages) {
        parts.push(role === 'user' ? '**You**' : `**${model || 'Answer'}**`, content.trim());
    }
    return `${parts.join('\n\n')}\n`;
}
