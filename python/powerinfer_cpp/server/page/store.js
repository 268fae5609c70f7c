// Conversations in localStorage, each under its own key: two tabs do not overwrite each other's.

const PREFIX = 'powerinfer.chat.';
const TAB = 'powerinfer.tab';
// Characters of all conversations. Browsers give a site some five million; settings need a few.
const MOST = 4 << 20;

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

export function writeText(storage, key, text) {
    try {
        storage.setItem(key, text);
        return true;
    } catch {
        return false;  // full
    }
}

export const writeJson = (storage, key, value) => writeText(storage, key, JSON.stringify(value));

// What is wrong with a conversation, as the rest of a sentence.
export class Invalid extends Error {}

const DEPTH = 100;  // of versions in versions

function need(holds, what) {
    if (!holds) throw new Invalid(what);
}

export const isObject = (value) =>
    value !== null && typeof value === 'object' && !Array.isArray(value);

// The value's fields of these kinds; others are left out.
function some(value, kinds) {
    return Object.fromEntries(Object.entries(kinds)
                                  .filter(([name, kind]) => (typeof value[name] === kind))
                                  .map(([name]) => [name, value[name]]));
}

const NUMBERS = {
    prompt_n: 'number',
    prompt_per_second: 'number',
    predicted_n: 'number',
    predicted_per_second: 'number'
};

function cleanCall(call, where) {
    const {name, arguments: given} = isObject(call?.function) ? call.function : {};
    need(
        typeof name === 'string' && typeof given === 'string',
        `${where} has a call without a name or arguments`);
    return {...some(call, {id: 'string', type: 'string'}), function: {name, arguments: given}};
}

function cleanMessage(message, where, depth) {
    need(isObject(message), `${where} is no object`);
    const {role, content, timings, tool_calls: calls, branches} = message;
    need(
        ['user', 'assistant'].includes(role),
        `${where} is of neither “user” nor “assistant” (“role”)`);
    need(typeof content === 'string', `${where} has no text (“content”)`);
    const found = {
        role,
        content,
        ...some(message, {
            model: 'string',
            stopped: 'boolean',
            cut: 'boolean',
            reasoning_content: 'string',
            thought_seconds: 'number'
        })
    };
    if (isObject(timings)) found.timings = some(timings, NUMBERS);
    if (calls !== undefined) {
        need(Array.isArray(calls), `${where} has “tool_calls” that are no list`);
        found.tool_calls = calls.map((call) => cleanCall(call, where));
    }
    if (branches !== undefined) {
        const {at, tails} = isObject(branches) ? branches : {};
        need(
            depth < DEPTH && Array.isArray(tails) && Number.isInteger(at) && tails[at] === null &&
                tails.every((tail, k) => k === at || (Array.isArray(tail) && tail.length)),
            `${where} has versions that do not fit (“branches”)`);
        found.branches = {
            at,
            tails: tails.map(
                (tail) => tail && cleanMessages(tail, `a version of ${where}, `, depth + 1))
        };
        need(
            found.branches.tails.every((tail) => !tail?.[0].branches),
            `${where} has versions that do not fit (“branches”)`);
    }
    return found;
}

function cleanMessages(messages, where, depth) {
    return messages.map((m, i) => cleanMessage(m, `${where}message ${i + 1}`, depth));
}

// A copy of a conversation with what the page knows. Throws Invalid.
export function clean(chat) {
    need(isObject(chat) && Array.isArray(chat.messages), 'there are no “messages”');
    need(chat.messages.length, 'there is no message');
    const fresh = newChat();
    const {id, created, changed, kind} = chat;
    return {
        id: typeof id === 'string' && /^[\w.-]{1,64}$/.test(id) ? id : fresh.id,
        created: Number.isFinite(created) ? created : fresh.created,
        changed: Number.isFinite(changed) ? changed : fresh.changed,
        ...(kind === 'text' ? {kind} : {}),
        messages: cleanMessages(chat.messages, '', 0),
    };
}

export function newChat() {
    const now = Date.now();
    // Not crypto.randomUUID: browsers have it only on https and localhost.
    const id = `${now.toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
    return {id, created: now, changed: now, messages: []};
}

// A conversation of this browser; null: there is none, or what is there is none.
export function stored(id) {
    try {
        const chat = readJson(local, PREFIX + id);
        return chat && {...clean(chat), id};
    } catch {
        return null;
    }
}

// All conversations, the newest first.
export function chats() {
    const found = [];
    for (let i = 0; i < local.length; i++) {
        const key = local.key(i);
        const chat = key?.startsWith(PREFIX) ? stored(key.slice(PREFIX.length)) : null;
        if (chat) found.push(chat);
    }
    return found.sort((a, b) => b.changed - a.changed);
}

// False if the space for conversations is used up.
export function keep(chat) {
    const [key, text] = [PREFIX + chat.id, JSON.stringify(chat)];
    let used = text.length;
    for (let i = 0; i < local.length; i++) {
        const other = local.key(i);
        if (other !== key && other.startsWith(PREFIX)) used += local.getItem(other).length;
    }
    return used <= MOST && writeText(local, key, text);
}

// The same after a change.
export function saveChat(chat) {
    if (!chat.messages.length) return true;
    chat.changed = Date.now();
    return keep(chat);
}

// What this tab shows, for its next load: {chat: id, model}. Another tab has its own.
export function tab() {
    const found = readJson(session, TAB);
    return isObject(found) ? found : {};
}

export function keepTab(next) { writeJson(session, TAB, {...tab(), ...next}); }

// The model that answered last.
export const modelOf = (chat) => chat.messages.findLast(({model}) => model)?.model;

export function remove(id) { local.removeItem(PREFIX + id); }

export function title(chat) {
    const first = chat.messages.find((m) => m.role === 'user');
    const text = first ? first.content.trim().replace(/\s+/g, ' ') : '';
    return text.length > 64 ? `${text.slice(0, 63).trimEnd()}…` : text || 'New conversation';
}
