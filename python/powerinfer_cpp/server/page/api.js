// Requests to the server. Addresses are relative: the page also works below a path of a proxy.

export class ApiError extends Error {
    constructor(message, status = 0) {
        super(message);
        this.status = status;
    }
}

// What went wrong, for a person to read.
const REASONS = {
    401: 'The server wants an API key, or does not know this one.',
    403: 'The server does not allow this.',
    404: 'The server does not have this.',
    413: 'The message is too long for the server.',
    429: 'The server has too many requests. Try again in a moment.',
    500: 'The server made a mistake.',
    503: 'The server is busy or still loads the model. Try again in a moment.',
};

async function reasonOf(response) {
    const plain =
        REASONS[response.status] || `The server refused this (status ${response.status}).`;
    try {
        const {error} = await response.json();
        const said = typeof error === 'string' ? error : error?.message;
        if (typeof said !== 'string' || !said) return plain;
        return response.status < 500 && response.status !== 401 ? said :
                                                                  `${plain} It said: ${said}`;
    } catch {
        return plain;
    }
}

export class Api {
    constructor(settings) { this.settings = settings; }

    async request(path, options = {}) {
        const headers = {...options.headers};
        if (this.settings.key) headers.Authorization = `Bearer ${this.settings.key}`;
        let response;
        try {
            response = await fetch(
                path, {...options, headers, cache: 'no-store', credentials: 'same-origin'});
        } catch (error) {
            if (error.name === 'AbortError') throw error;
            if (error instanceof TypeError && /header|ISO-8859|ByteString/i.test(error.message)) {
                throw new ApiError('The API key has characters that cannot be sent.', 401);
            }
            throw new ApiError('The server does not answer. Is it still running?');
        }
        if (!response.ok) throw new ApiError(await reasonOf(response), response.status);
        return response;
    }

    // Names of the models, whether each only continues texts (no chat format is its own), and
    // whether it is still being loaded.
    async models() {
        const {data} = await (await this.request('v1/models')).json();
        return data.map((model) => ({
                            name: String(model.id),
                            continues: model.chat_format === null,
                            loads: model.status?.value === 'loading',
                        }));
    }

    // [kind, length] of the parts of a code, or null.
    async highlight(language, code) {
        const response = await this.request('highlight', {
            method: 'POST',
            headers: {'Content-Type': 'application/json'},
            body: JSON.stringify({language, code}),
        });
        return (await response.json()).spans;
    }

    // The chunks of an answer, or with a prompt of its continuation, as objects.
    async * chat(body, signal) {
        const route = 'prompt' in body ? 'v1/completions' : 'v1/chat/completions';
        const response = await this.request(route, {
            method: 'POST',
            headers: {'Content-Type': 'application/json'},
            body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true}}),
            signal,
        });
        let done = false;
        for await (const data of events(response.body)) {
            if (data === '[DONE]') {
                done = true;
                break;
            }
            const chunk = JSON.parse(data);
            if (chunk.error)
                throw new ApiError(
                    chunk.error.message || 'The answer broke off.', chunk.error.code);
            yield chunk;
        }
        if (!done) throw new ApiError('The answer broke off: the connection was closed.');
    }
}

// The data of server-sent events. Events may be cut anywhere, also inside a character.
async function* events(body) {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let rest = '';
    try {
        for (;;) {
            let part;
            try {
                part = await reader.read();
            } catch (error) {
                if (error.name === 'AbortError') throw error;
                throw new ApiError('The answer broke off: the connection was lost.');
            }
            rest += part.done ? decoder.decode() : decoder.decode(part.value, {stream: true});
            const lines = rest.split(/\r?\n/);
            rest = lines.pop();
            for (const line of lines) {
                if (line.startsWith('data:')) yield line.slice(5).trim();
            }
            if (part.done) return;
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}
