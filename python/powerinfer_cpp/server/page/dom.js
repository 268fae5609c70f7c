// Small helpers to build the page. Text goes in as text nodes only, never as HTML.

const SVG = 'http://www.w3.org/2000/svg';

export const byId = (id) => document.getElementById(id);

// An element with properties and children. Children may be nodes or strings.
export function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
        if (name.startsWith('on'))
            element.addEventListener(name.slice(2), value);
        else if (name in element)
            element[name] = value;
        else
            element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
}

export function icon(name) {
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('aria-hidden', 'true');
    const use = document.createElementNS(SVG, 'use');
    use.setAttribute('href', `#i-${name}`);
    svg.append(use);
    return svg;
}

// A button that shows an icon and, where there is room, its name.
export function iconButton(name, label, onclick) {
    const button = make('button', {type: 'button', className: 'icon', title: label, onclick});
    button.setAttribute('aria-label', label);
    button.append(icon(name));
    return button;
}

// Offers a file to the person. The address is kept for a while: a browser may ask where to save.
export function download(blob, name) {
    const address = URL.createObjectURL(blob);
    const link = make('a', {href: address, download: name});
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
}

// A name that every file system accepts.
export function fileName(text, ending) {
    const safe =
        text.normalize('NFC').replace(/[^\p{L}\p{N}._-]+/gu, '-').replace(/^[-.]+|-+$/g, '');
    return `${safe.slice(0, 60) || 'powerinfer'}.${ending}`;
}

export function say(text) { byId('status').textContent = text; }

export function notice(text) { byId('notice').textContent = text; }
