#include <csignal>
#include <filesystem>
#include <iostream>
#include <new>

#include "hetermoe/base/error.h"
#include "hetermoe/base/lost_pages.h"
#include "hetermoe/base/stack_room.h"
#include "hetermoe/base/version.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/device/cpu_memory.h"
#include "hetermoe/train/session/presence.h"

// The only place that catches everything. Exit codes: 0 success, 1 a run that failed, 2 wrong use or wrong
// input.
namespace {

int fail_with(int code, const std::string& text) {
  std::cout << std::flush;
  std::cerr << hetermoe::printable_lines(text) << std::endl;
  return code;
}

/// The exit code of the program with these words.
int run(const std::vector<std::string>& words) {
  try {
    const int code = hetermoe::run_program(words);
    std::cout << std::flush;
    return std::cout ? code : fail_with(1, "[stdout] cannot write the result");
  } catch (const hetermoe::Error& error) {
    return fail_with(hetermoe::exit_code_of(error), error.what());
  } catch (const std::bad_alloc&) {
    return fail_with(1, "[hetermoe] out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return fail_with(2, "[" + error.path1().string() + "] " + error.code().message());
  } catch (const std::exception& error) {
    return fail_with(1, std::string("[hetermoe] unexpected error: ") + error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 0) hetermoe::set_program(argv[0]);
  hetermoe::keep_freed_memory();
  hetermoe::name_files_that_shrink(hetermoe::Presence::tell_failed);
  std::signal(SIGXFSZ, SIG_IGN);  // who writes is told "File too large"
  return hetermoe::with_stack_room([&] { return run({argv + 1, argv + argc}); });
}
