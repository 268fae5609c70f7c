// A conversation in the terminal: each line of stdin is a message that the model answers.
#pragma once

#include <string>

#include "chat.h"
#include "options.h"

class Generation;

// The format of a model file's conversations; throws Failure where it is not known.
ChatFormat read_chat_format(const std::string& path);
// Talks until the input or the context ends. Throws Interrupted.
void converse(Generation& generation, const ChatFormat& format, const Options& options);
