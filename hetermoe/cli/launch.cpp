#include <fmt/ranges.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/types.h"
#include "hetermoe/cli/command.h"

namespace hetermoe {
namespace {

struct Options {
  i64 restarts = 3;
  double pause = 1;
  bool json = false;
  std::vector<std::string> command;
};

/// Exit code of wrong use or wrong input: the next try would end the same way.
constexpr int kWrongUse = 2;

volatile sig_atomic_t running_child = 0;
volatile sig_atomic_t stop_signal = 0;

/// Ctrl-C and SIGTERM are for the run: it writes its checkpoint and ends.
void pass_on(int signal_number) {
  stop_signal = signal_number;
  if (running_child > 0) ::kill(static_cast<pid_t>(running_child), signal_number);
}

/// Exit code of the command; 128 + signal when one ended it.
int run_once(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) fail<IoError>(words[0], "cannot start: {}", std::strerror(errno));
  if (child == 0) {
    ::execvp(argv[0], argv.data());
    std::cerr << fmt::format("[{}] cannot start: {}", words[0], std::strerror(errno)) << std::endl;
    ::_exit(kWrongUse);
  }
  running_child = child;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running_child = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int finish(const Options& options, int code, i64 restarts) {
  if (options.json) print_json({{"exit_code", code}, {"restarts", restarts}});
  return code;
}

int launch(const Options& options, const std::vector<std::string>& words) {
  if (words.empty())
    fail<ConfigError>("launch", "no command: hetermoe launch -- mpirun -np 4 hetermoe train job.yaml");
  if (options.restarts < 0) fail<ConfigError>("--restarts", "got {}, expected >= 0", options.restarts);
  ::signal(SIGINT, pass_on);
  ::signal(SIGTERM, pass_on);
  for (i64 restart = 0;; ++restart) {
    const int code = run_once(words);
    if (code == 0 || stop_signal != 0 || code == kWrongUse) return finish(options, code, restart);
    const std::string command = fmt::format("{}", fmt::join(words, " "));
    if (restart == options.restarts) {
      std::cerr << fmt::format("[launch] {} failed with code {} and {} restarts are used up", command, code,
                               restart)
                << std::endl;
      return finish(options, code, restart);
    }
    std::cerr << fmt::format("[launch] {} failed with code {}: restart {} of {}, from the newest checkpoint",
                             command, code, restart + 1, options.restarts)
              << std::endl;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.pause));
  }
}

}  // namespace

std::function<int()> make_launch(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("--restarts", options->restarts, "how often a run that failed is started again")
      ->capture_default_str();
  app.add_option("--pause", options->pause, "seconds before a restart")->capture_default_str();
  app.add_flag("--json", options->json, "print exit code and restarts as JSON at the end");
  app.add_option("command", options->command, "after --: the command and its words")->expected(-1);
  return [options] { return launch(*options, options->command); };
}

}  // namespace hetermoe
