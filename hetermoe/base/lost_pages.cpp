#include "hetermoe/base/lost_pages.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Between a signal and the end of the process: nothing here allocates, locks or throws.
namespace hetermoe {
namespace {

void (*words_before_end)() = nullptr;
std::atomic_flag is_ending = ATOMIC_FLAG_INIT;

/// A line of /proc/self/maps: "start-end rights offset device inode   path".
class MapLines {
 public:
  MapLines() : file_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~MapLines() { ::close(file_); }
  MapLines(const MapLines&) = delete;
  MapLines& operator=(const MapLines&) = delete;

  /// Null at the end; lives until the next call.
  char* next() {
    for (std::size_t length = 0;; ++length) {
      if (at_ == end_ && !fill()) return nullptr;
      const char byte = part_[at_++];
      const bool ends = byte == '\n';
      if (length < sizeof line_) line_[length] = ends ? '\0' : byte < ' ' || byte == 127 ? '?' : byte;
      line_[sizeof line_ - 1] = '\0';
      if (ends) return line_;
    }
  }

 private:
  bool fill() {
    const ssize_t size = ::read(file_, part_, sizeof part_);
    at_ = 0;
    end_ = size > 0 ? static_cast<std::size_t>(size) : 0;
    return size > 0;
  }

  int file_;
  std::size_t at_ = 0, end_ = 0;
  char part_[4096] = {}, line_[8192] = {};
};

std::uintptr_t hex_number(const char*& at) {
  std::uintptr_t number = 0;
  for (;; ++at) {
    const char* digits = "0123456789abcdef";
    const char* digit = *at == '\0' ? nullptr : std::strchr(digits, *at);
    if (digit == nullptr) return number;
    number = number * 16 + static_cast<std::uintptr_t>(digit - digits);
  }
}

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

/// "[path] " of the file whose page is at the address.
void say_file_at(std::uintptr_t address) {
  MapLines lines;
  while (char* line = lines.next()) {
    const char* at = line;
    const std::uintptr_t begin = hex_number(at);
    if (*at == '-') ++at;
    const std::uintptr_t end = hex_number(at);
    const char* path = std::strchr(line, '/');
    if (address < begin || address >= end || path == nullptr) continue;
    say("[");
    say(path);
    say("] ");
    return;
  }
  say("[hetermoe] a file ");
}

void end_by_lost_page(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (info->si_code != BUS_ADRERR) {
    ::signal(SIGBUS, SIG_DFL);  // the same again ends the process
    return;
  }
  while (is_ending.test_and_set()) ::pause();  // another thread says it
  say_file_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
  say("became shorter while it was read, or its disk failed: expected a file that stays as it is. Write a "
      "new "
      "one and rename it\n");
  if (words_before_end != nullptr) words_before_end();
  ::_exit(1);
}

}  // namespace

void name_files_that_shrink(void (*last_words)()) {
  words_before_end = last_words;
  struct sigaction action {};
  action.sa_sigaction = end_by_lost_page;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace hetermoe
