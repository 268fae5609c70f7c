// A conversation in the terminal: the model answers each line of stdin.
#pragma once

#include <optional>
#include <string>

#include "chat.h"
#include "options/options.h"

class Generation;

// The chat format that the options name, or else the model's. Nothing if it is not supported, or
// if there is none: `why` says so then, unless the model just has no template. Throws Failure if
// the model cannot be read.
std::optional<ChatFormat> find_chat_format(const Options& options, std::string& why);
// Runs until the input or the context ends. Throws Interrupted.
void converse(Generation& generation, const ChatFormat& format, const Options& options);
