#include <fmt/ranges.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/types.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/train/presence.h"
#include "hetermoe/train/replan.h"

namespace hetermoe {
namespace {

struct Options {
  i64 restarts = 3;
  double pause = 1;
  bool replan = false, json = false;
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

/// Position of the word `train` of `hetermoe train` in a command; its size = there is none.
std::size_t train_word(const std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "train" && std::filesystem::path(words[i - 1]).filename() == "hetermoe") return i;
  }
  return words.size();
}

/// The job of a command `... hetermoe train job.yaml --key value`.
Job job_of(const std::vector<std::string>& words) {
  const std::size_t train = train_word(words);
  if (train == words.size())
    fail<ConfigError>("--replan", "needs a command with `hetermoe train`, got {}", fmt::join(words, " "));
  CLI::App app;
  make_train(app);
  std::vector<std::string> rest(words.rbegin(), words.rend() - static_cast<std::ptrdiff_t>(train) - 1);
  app.parse(rest);
  const std::vector<std::string> file = app.get_option("job")->results();
  return file.empty() ? job_from_overrides(overrides_of(app)) : load_job(file[0], overrides_of(app));
}

/// Where a launcher's word for the number of processes stands (-np 4), 0 = nowhere.
std::size_t count_word(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i + 1 < train_word(words); ++i) {
    for (const char* name : {"-np", "--np", "-n", "-c", "--ntasks"}) {
      if (words[i] == name) return i + 1;
    }
  }
  return 0;
}

/// When ranks vanished and others did not: the command for the devices that are left. Else the same command.
std::vector<std::string> replanned(std::vector<std::string> words) {
  const Job job = job_of(words);
  std::vector<DeviceId> lost, survivors;
  std::vector<i32> lost_ranks;
  for (const RankEnd& end : read_rank_ends(job.output)) {
    std::vector<DeviceId>& devices = end.vanished ? lost : survivors;
    devices.insert(devices.end(), end.devices.begin(), end.devices.end());
    if (end.vanished) lost_ranks.push_back(end.rank);
  }
  if (lost.empty() || survivors.empty()) return words;
  std::sort(survivors.begin(), survivors.end());
  const JobChanges changes = replan(job, survivors);
  for (const auto& [key, value] : changes) words.insert(words.end(), {"--" + key, value});
  if (const std::size_t count = count_word(words); count > 0)
    words[count] = std::to_string(std::stoll(words[count]) - static_cast<i64>(lost_ranks.size()));
  std::cerr << fmt::format("[launch] rank {} with device {} vanished: planned anew over devices {} ({})",
                           fmt::join(lost_ranks, ", "), fmt::join(lost, ", "), fmt::join(survivors, ", "),
                           changes[0].second)
            << std::endl;
  return words;
}

int finish(const Options& options, int code, i64 restarts) {
  if (options.json) print_json({{"exit_code", code}, {"restarts", restarts}});
  return code;
}

int launch(const Options& options, std::vector<std::string> words) {
  if (words.empty())
    fail<ConfigError>("launch", "no command: hetermoe launch -- mpirun -np 4 hetermoe train job.yaml");
  if (options.restarts < 0) fail<ConfigError>("--restarts", "got {}, expected >= 0", options.restarts);
  ::signal(SIGINT, pass_on);
  ::signal(SIGTERM, pass_on);
  for (i64 restart = 0;; ++restart) {
    if (options.replan) forget_ranks(job_of(words).output);
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
    if (options.replan) words = replanned(words);
    std::this_thread::sleep_for(std::chrono::duration<double>(options.pause));
  }
}

}  // namespace

std::function<int()> make_launch(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("--restarts", options->restarts, "how often a run that failed is started again")
      ->capture_default_str();
  app.add_flag(
      "--replan", options->replan,
      "when processes vanished, plan anew over the devices of the others (mpirun: with so many fewer)");
  app.add_option("--pause", options->pause, "seconds before a restart")->capture_default_str();
  app.add_flag("--json", options->json, "print exit code and restarts as JSON at the end");
  app.add_option("command", options->command, "after --: the command and its words")->expected(-1);
  return [options] { return launch(*options, options->command); };
}

}  // namespace hetermoe
