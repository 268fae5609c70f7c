// Conversations as files: out of this browser and back. What comes in is checked first, and nothing
// that is kept already is changed by it.

import {chats, clean, Invalid, keep, newChat, remove, stored, title} from './store.js';

const KIND = 'powerinfer conversations';
const LARGEST = 64 << 20;  // bytes of a file

export function asJson(chat) { return JSON.stringify({title: title(chat), ...chat}, null, 2); }

export function allAsJson() {
    const conversations = chats().map((chat) => ({title: title(chat), ...chat}));
    return JSON.stringify({kind: KIND, version: 1, conversations}, null, 2);
}

function calls(message) {
    return (message.tool_calls || [])
        .map(
            ({function: {name, arguments: given}}) =>
                (`Calls \`${name}\`:\n\n\`\`\`json\n${given}\n\`\`\``));
}

export function asMarkdown(chat) {
    if (chat.kind === 'text') return `${chat.messages.map(({content}) => content).join('')}\n`;
    const parts = [`# ${title(chat)}`];
    for (const message of chat.messages) {
        const {role, content, model} = message;
        parts.push(role === 'user' ? '**You**' : `**${model || 'Answer'}**`, content.trim());
        parts.push(...calls(message));
    }
    return `${parts.filter(Boolean).join('\n\n')}\n`;
}

// The conversations of a file's text. Throws Invalid with a sentence.
export function readFile(text) {
    let data;
    try {
        data = JSON.parse(text);
    } catch {
        throw new Invalid('it is not JSON');
    }
    const found = Array.isArray(data) ? data : data?.conversations ?? (data?.messages && [data]);
    if (!Array.isArray(found) || !found.length)
        throw new Invalid('there is no conversation in it (no “messages”, no “conversations”)');
    return found.map((chat, i) => {
        try {
            return clean(chat);
        } catch (error) {
            if (!(error instanceof Invalid) || found.length === 1) throw error;
            throw new Invalid(`in conversation ${i + 1}, ${error.message}`);
        }
    });
}

const same = (a, b) => JSON.stringify(a.messages) === JSON.stringify(b.messages);

// Keeps the conversations of a file: all, or none if anything is wrong. Returns a sentence.
export async function importFile(file) {
    let found;
    try {
        if (file.size > LARGEST) throw new Invalid('it is larger than 64 MB');
        found = readFile(await file.text());
    } catch (error) {
        const why = error instanceof Invalid ? error.message : 'the browser could not read it';
        return `“${file.name}” was not imported: ${why}.`;
    }
    const added = [];
    let known = 0;
    for (const chat of found) {
        const kept = stored(chat.id);
        if (kept && same(kept, chat)) {
            known += 1;
            continue;
        }
        if (kept) chat.id = newChat().id;
        if (!keep(chat)) {
            added.forEach(remove);
            return `“${file.name}” was not imported: this browser's storage is full.`;
        }
        added.push(chat.id);
    }
    const many = (n) => (n === 1 ? '1 conversation' : `${n} conversations`);
    const here = known ? ` ${many(known)} of it ${known === 1 ? 'was' : 'were'} here already.` : '';
    return added.length ? `Imported ${many(added.length)}.${here}` : `Nothing is new.${here}`;
}
