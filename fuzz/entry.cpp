#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <typeinfo>

#include "fuzz/target.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/paths.h"

// What libFuzzer and driver.cpp call. Two flags of our own stand before theirs, which ignore flags that begin
// with "--":
//   --list                prints the names of the targets and ends
//   --target=NAME         the target that is run
//   --write-seeds=FOLDER  writes the target's seeds into an existing folder and ends

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
/// Defaults of AddressSanitizer: freed memory is kept back for a short time only, because the limit of 1 GiB
/// counts it. An allocation above the limit ends the program instead of returning null.
extern "C" const char* __asan_default_options() {  // NOLINT: the sanitizer gives the name
  return "quarantine_size_mb=16:detect_stack_use_after_return=0:max_allocation_size_mb=1024:"
         "allocator_may_return_null=0:hard_rss_limit_mb=1024:handle_abort=1";
}
extern "C" const char* __ubsan_default_options() {  // NOLINT: as above
  return "halt_on_error=1:print_stacktrace=1";
}

namespace hetermoe::fuzz {
namespace {

const Target* chosen = nullptr;

const Target& find_target(const std::string& name) {
  for (const Target& target : targets()) {
    if (name == target.name) return target;
  }
  std::fprintf(stderr, "no target %s; --list names them\n", name.c_str());
  std::exit(2);
}

void write_seeds(const std::filesystem::path& folder) {
  const std::vector<std::string> seeds = chosen->seeds();
  for (std::size_t i = 0; i < seeds.size(); ++i) write_text(folder / ("seed-" + std::to_string(i)), seeds[i]);
}

[[noreturn]] void report(const char* kind, const char* text) {
  std::fprintf(stderr, "FINDING in target %s: %s: %s\n", chosen->name, kind, text);
  std::abort();
}

}  // namespace

std::vector<std::string> config_texts(const std::string& kind, const std::string& extension) {
  std::vector<std::string> texts;
  for (const std::string& name : config_names(kind, extension)) {
    texts.push_back(read_text(find_config(name, kind, extension)));
  }
  return texts;
}

void expect_same(const std::string& first, const std::string& second, const char* what) {
  if (first != second)
    throw std::logic_error(std::string(what) + " reads back as another:\n" + first + "\n" + second);
}

}  // namespace hetermoe::fuzz

int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace hetermoe::fuzz;
  const char* folder = nullptr;
  for (int i = 1; i < *argc; ++i) {
    const char* flag = (*argv)[i];
    if (std::strcmp(flag, "--list") == 0) {
      for (const Target& target : targets()) std::puts(target.name);
      std::exit(0);
    }
    if (std::strncmp(flag, "--target=", 9) == 0) chosen = &find_target(flag + 9);
    if (std::strncmp(flag, "--write-seeds=", 14) == 0) folder = flag + 14;
  }
  if (chosen == nullptr) {
    std::fputs("give --target=NAME or --list\n", stderr);
    std::exit(2);
  }
  if (folder != nullptr) {
    write_seeds(folder);
    std::exit(0);
  }
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hetermoe;
  try {
    fuzz::chosen->run(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const InternalError& error) {
    fuzz::report("a check of our own failed", error.what());
  } catch (const Error&) {  // the input is wrong and was told so
  } catch (const std::exception& error) {
    fuzz::report(typeid(error).name(), error.what());
  }
  return 0;
}
