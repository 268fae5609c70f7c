"""From token ids to tokens: sequences, scheduling, drafts, saved prefixes.

A `Runtime` opens a model with `Options`. `Llama` writes with it by a `Loop`, the server by an
`Engine` and its `Scheduler`.

Who owns a sequence of a session, and who may shorten it:

- A `Context` (core/context.py) owns sequence 0 of its session. `Llama` and its `Loop` share it.
  Every change counts `Context.version` up, so a loop sees what others did between two of its
  tokens, and makes the sequence its text again.
- `Sequences` (sequences.py) owns those of a scheduler's session. A text takes one; its positions
  are kept when it ends. Where positions run out, the oldest of these go first, then what a `Keeper`
  holds for files (prefixes.py), then the last text of the sender with the most places.
- Guessed positions (drafts.py) are at the end of a text's own sequence. They go when a guess is
  wrong, when the text ends or gives up its place, and first of all where positions run out.
- A sequence whose layers have a state is cut to what `Session.match` answers, and else to nothing:
  guesses are few enough that their call can be taken back, and a `Generation` has the positions
  where checkpoints are kept (core/state.py, docs/states.md).
- `FileDraft` owns all sequences of the draft model's session, by a `Sequences` of its own.
"""
