#pragma once
#include <string>

namespace hetermoe {

/// Version of hetermoe, as 0.1.0.
const char* version();

/// The word that starts the program again: "hetermoe", or its path where it was started by one. For commands
/// that a message proposes.
const std::string& program();
/// word: the first of the command line. Once, before other threads begin.
void set_program(const std::string& word);

}  // namespace hetermoe
