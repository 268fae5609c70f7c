// How numbers are written on the page.

export function bytes(n) {
    if (!(n > 0)) return '0 B';
    const units = ['B', 'kB', 'MB', 'GB', 'TB'];
    let k = 0;
    while (n >= 999.5 && k < units.length - 1) {
        n /= 1000;
        k += 1;
    }
    return `${n >= 100 || k === 0 ? n.toFixed(0) : n.toPrecision(n >= 10 ? 3 : 2)} ${units[k]}`;
}

export function percent(share) {
    const n = share * 100;
    if (n > 0 && n < 0.05) return '<0.1%';
    if (n > 99.9 && n < 100) return '99.9%';  // not all
    return n >= 99.95 ? '100%' : `${n.toFixed(n >= 99.95 ? 0 : 1)}%`;
}

export const whole = (n) => n.toLocaleString('en');

export const many = (n, what) => `${whole(n)} ${what}${n === 1 ? '' : 's'}`;

export function rate(n) { return n >= 100 ? n.toFixed(0) : n.toFixed(1); }

// A word as it stands in a sentence: without the signs around it, and not endless.
export function quoted(word) {
    const plain = word.replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, '') || word;
    return `“${plain.length > 24 ? `${plain.slice(0, 23)}…` : plain}”`;
}

export function duration(seconds) {
    const n = Math.max(1, Math.round(seconds));
    return n < 60 ? `${n} s` : `${Math.floor(n / 60)} min ${n % 60} s`;
}
