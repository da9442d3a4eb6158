#pragma once

namespace hetermoe {

/// From now on a file in memory (tokens, weights) that becomes shorter while it is read ends the process by a
/// sentence that names it, and exit code 1; the system would end it by SIGBUS without a word. `last_words` is
/// called in the signal handler before.
void name_files_that_shrink(void (*last_words)() = nullptr);

}  // namespace hetermoe
