#include <malloc.h>

#include <iostream>
#include <new>

#include "hetermoe/base/error.h"
#include "hetermoe/cli/command.h"

// The only place that catches everything. Exit codes: 0 success, 1 a run that failed, 2 wrong use or wrong
// input.
namespace {

int fail_with(int code, const std::string& text) {
  std::cout << std::flush;
  std::cerr << text << std::endl;
  return code;
}

/// Buffers come back step after step in the same sizes. As shipped, malloc gives large ones back to the
/// system, and every reuse pays for fresh zeroed pages: 6 to 9 % of a training step.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_ARENA_MAX, 1);  // arenas of threads hold no large blocks
#endif
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  try {
    const int code = hetermoe::run_program({argv + 1, argv + argc});
    std::cout << std::flush;
    return std::cout ? code : fail_with(1, "[stdout] cannot write the result");
  } catch (const hetermoe::ConfigError& error) {
    return fail_with(2, error.what());
  } catch (const hetermoe::IoError& error) {
    return fail_with(2, error.what());
  } catch (const hetermoe::InputError& error) {
    return fail_with(2, error.what());
  } catch (const hetermoe::Error& error) {
    return fail_with(1, error.what());
  } catch (const std::bad_alloc&) {
    return fail_with(1, "[hetermoe] out of memory");
  } catch (const std::exception& error) {
    return fail_with(1, std::string("[hetermoe] unexpected error: ") + error.what());
  }
}
