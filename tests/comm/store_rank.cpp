// A rank of a run that meets at a store, as store_job_test.cpp starts it under the variables of torchrun:
//   store_rank JOIN_LIMIT GATHER_LIMIT SILENCE ACTION...
// Actions, in turn: gather=TEXT, large=MEBIBYTES, alike=TEXT, sleep=SECONDS, abort=CODE, quit (no last word),
// throw, process (tells all its number), transfer=RANK (waits for the end of that rank's process, whose
// number was told, and ends as a transfer with it fails; of -1 at once), blame=RANK (the same, but ends as by
// an error of its own), error=TEXT (tells it as its own and goes on). Each says on stdout when it is done.
#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <thread>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/comm/store_job.h"

namespace hetermoe {
namespace {

std::vector<std::string> process_of;  // [rank]

/// A process that was killed is a zombie until the test has asked for its end.
bool is_alive(const std::string& process) {
  std::ifstream in("/proc/" + process + "/stat");
  std::string text;
  std::getline(in, text);
  return !text.empty() && text.find(") Z ") == std::string::npos;
}

void await_end_of(i32 rank) {
  while (rank >= 0 && is_alive(process_of.at(static_cast<std::size_t>(rank))))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void act(const Processes& processes, const std::string& action) {
  const std::size_t equal = std::min(action.find('='), action.size());
  const std::string what = action.substr(0, equal), value = action.substr(std::min(equal + 1, action.size()));
  if (what == "gather") {
    std::cout << fmt::format("{}", processes.gather(value == "-" ? "" : value)) << std::endl;
  } else if (what == "large") {
    const std::string mine(static_cast<std::size_t>(std::stoll(value)) << 20,
                           static_cast<char>('a' + processes.rank()));
    for (const std::string& text : processes.gather(mine))
      std::cout << fmt::format("{} {:x}", text.size(), checksum(text.data(), text.size())) << std::endl;
  } else if (what == "alike") {
    check_alike(processes, value, "Why not?");
  } else if (what == "sleep") {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::stod(value)));
  } else if (what == "abort") {
    processes.abort({.code = std::stoi(value)});
  } else if (what == "process") {
    process_of = processes.gather(std::to_string(::getpid()));
    std::cout << "told" << std::endl;
  } else if (what == "transfer") {
    await_end_of(std::stoi(value));
    end_run(processes, TransportError("[reduce s7] remote process exited"), 1);
  } else if (what == "error") {
    processes.tell_error(value);
  } else if (what == "blame") {
    await_end_of(std::stoi(value));
    end_run(processes, DeviceError("[reduce s7] remote process exited"), 1);
  } else if (what == "quit") {
    std::_Exit(0);
  } else {
    fail<InputError>(action, "as the test wants it");
  }
}

int run(const std::vector<std::string>& words) {
  StoreOptions options;
  options.join_limit = std::stod(words[1]);
  options.gather_limit = std::stod(words[2]);
  options.silence = std::stod(words[3]);
  options.last_words = [] { std::cout << "last words" << std::endl; };
  const std::unique_ptr<Processes> processes = join_store(read_store_address(environment_variable), options);
  std::cout << "joined" << std::endl;
  for (std::size_t i = 4; i < words.size(); ++i) act(*processes, words[i]);
  std::cout << "done" << std::endl;
  return 0;
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  try {
    return hetermoe::run({argv, argv + argc});
  } catch (const hetermoe::Error& error) {
    std::cerr << error.what() << std::endl;
    return dynamic_cast<const hetermoe::ConfigError*>(&error) != nullptr ? 2 : 1;
  }
}
