// Texts of the command line: from options, files and stdin, with their escapes.
#pragma once

#include <string>

#include "options/options.h"

// Replaces \n \r \t \' \" \\ and \x41. Any other backslash stays as it is.
std::string unescape(const std::string& text);
// Reads what the options say is in files, and replaces escapes. Throws Failure or Interrupted.
void read_texts(Options& options);
