// Versions of a conversation. Its messages are the one that is shown. Where a message was edited or
// answered again, the first message of what followed has
//   branches: {at: number of the shown version, tails: the messages of each; null for the shown}.
// So a conversation without versions is a list of messages, as it always was.

// Puts what begins at messages[i] aside. Returns what the message that comes there must have as
// `branches`; undefined where nothing was there.
export function fork(messages, i) {
    const tail = messages.splice(i);
    if (!tail.length) return undefined;
    const branches = tail[0].branches || {at: 0, tails: [null]};
    delete tail[0].branches;
    branches.tails[branches.at] = tail;
    branches.at = branches.tails.push(null) - 1;
    return branches;
}

// Shows another version of what begins at messages[i]: `step` further, without end in both
// directions.
export function turn(messages, i, step) {
    const {branches} = messages[i];
    const many = branches.tails.length;
    const tail = messages.splice(i);
    delete tail[0].branches;
    branches.tails[branches.at] = tail;
    branches.at = (branches.at + step + many) % many;
    const next = branches.tails[branches.at];
    branches.tails[branches.at] = null;
    next[0].branches = branches;
    messages.push(...next);
}

// {number, many} of a message that has versions, else null.
export function version({branches}) {
    const many = branches?.tails.length || 1;
    return many > 1 ? {number: branches.at + 1, many} : null;
}
