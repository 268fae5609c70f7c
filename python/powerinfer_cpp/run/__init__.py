"""From token ids to tokens: sequences, scheduling, drafts, saved prefixes.

A `Runtime` opens a model with `Options`. `Llama` writes with it by a `Loop`, the server by an
`Engine` and its `Scheduler`.

Who owns a sequence of a session, and who may shorten it:

- A `Context` (core/sequences/context.py) owns sequence 0 of its session. `Llama` and its `Loop`
  share it. Every change counts `Context.version` up, so a loop sees what others did between two of
  its tokens, and makes the sequence its text again.
- `Sequences` (sequences.py) owns those of a scheduler's session. A text takes one; its positions
  are kept when it ends. Where positions run out, the oldest of these go first, then what a `Keeper`
  holds for files (prefixes.py), then the last text of the sender with the most places.
- Guessed positions (drafts.py) are at the end of a text's own sequence. They go when a guess is
  wrong, when the text ends or gives up its place, and first of all where positions run out.
- A sequence whose layers have a state is cut to what `Session.match` answers, and else to nothing:
  guesses are few enough that their call can be taken back, and a `Generation` has the positions
  where checkpoints are kept (core/state.py, docs/states.md).
- `FileDraft` owns all sequences of the draft model's session, by a `Sequences` of its own.

Words of this folder and of the server:

- request: a prompt and what is asked of the texts after it (requests.py). ticket: a request that a
  scheduler has taken, with its times and counts.
- text: one of the `n` answers to a request; a `Generation` while it is written.
- piece: the part of a text that one or more tokens have made certain. update: what a step brought
  for one text, as a rule a piece.
- step: one pass of a scheduler over its texts. pass: one evaluation of the model.
- sender: who takes turns with others. owner: whose saved prefixes a request may use.
- prefix: the beginning of a prompt whose positions are computed already. shared positions: where
  later prompts are likely to leave a prefix.
- draft: guessed tokens that the next pass checks.
- job (server): the requests of one body, and the form of their answer.
- form (server): how a dialect writes an answer, whole or as events. part (text/tools): content, a
  thought or a call of an answer that was read.
- shares (server): places for work in threads, of which each sender has only a few.
"""
