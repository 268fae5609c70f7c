"""From token ids to tokens: sequences, scheduling, drafts, saved prefixes."""
