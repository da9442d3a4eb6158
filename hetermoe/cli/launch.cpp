#include <fmt/ranges.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cluster/hostfile.h"
#include "hetermoe/train/session/presence.h"
#include "hetermoe/train/session/replan.h"

namespace hetermoe {
namespace {

struct LaunchArguments {
  i64 restarts = 3;
  double pause = 1;
  bool replan = false, json = false;
  std::string hostfile;
};

/// Exit code of wrong use or wrong input: the next try would end the same way.
constexpr int kWrongUse = 2;

volatile sig_atomic_t running_child = 0;
volatile sig_atomic_t stop_signal = 0;

/// kStopSignals are for the run: it writes its checkpoint and ends. The run has a process group of its own.
/// So it gets what a terminal or `kill` sends to the group of this process from here alone, and once.
void pass_on(int signal_number) {
  stop_signal = signal_number;
  if (running_child > 0) ::kill(static_cast<pid_t>(running_child), signal_number);
}

/// Ctrl-Z stops the run, too, and `fg` or `bg` lets it go on.
void stop_with_run(int /*signal*/) {
  if (running_child > 0) ::kill(-static_cast<pid_t>(running_child), SIGTSTP);
  ::raise(SIGSTOP);
  if (running_child > 0) ::kill(-static_cast<pid_t>(running_child), SIGCONT);
}

void pass_signals_on() {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = stop_with_run;
  ::sigaction(SIGTSTP, &action, nullptr);
  action.sa_handler = pass_on;
  for (const int signal : kStopSignals) {
    struct sigaction before {};
    ::sigaction(signal, &action, &before);
    const bool ignored = before.sa_handler == SIG_IGN;
    if (ignored && signal == SIGHUP) ::sigaction(signal, &before, nullptr);  // as nohup wants it
  }
}

/// Exit code of the command; 128 + signal when one ended it.
int run_once(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) fail<IoError>(words[0], "cannot start: {}", std::strerror(errno));
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // nobody else would end it
    ::execvp(argv[0], argv.data());
    std::cerr << fmt::format("[{}] cannot start: {}", words[0], std::strerror(errno)) << std::endl;
    ::_exit(kWrongUse);
  }
  ::setpgid(child, child);  // here, too: a signal may come before the child runs
  running_child = child;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running_child = 0;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool is_mpirun(const std::string& word) {
  const std::string name = std::filesystem::path(word).filename();
  return name == "mpirun" || name == "mpiexec";
}

/// Open MPI starts nothing for root, and no more processes than this machine has cores, unless its
/// environment says so (version 4 reads OMPI_*, version 5 PRTE_*; other launchers neither). What the user has
/// set stays. Where hosts are named, their slots are the bound.
void allow_open_mpi(const std::vector<std::string>& words) {
  if (!is_mpirun(words[0])) return;
  std::vector<std::pair<const char*, const char*>> variables;
  if (::geteuid() == 0) {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"})
      variables.emplace_back(name, "1");
  }
  const bool names_hosts = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "--hostfile" || word == "-hostfile" || word == "--machinefile" || word == "-machinefile" ||
           word == "--host" || word == "-host" || word == "-H";
  });
  if (!names_hosts) {
    variables.emplace_back("OMPI_MCA_rmaps_base_oversubscribe", "1");
    variables.emplace_back("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
  }
  for (const auto& [name, value] : variables) ::setenv(name, value, /*overwrite=*/0);
}

/// Waits, or less when a signal came.
void wait_unless_stopped(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (stop_signal == 0 && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// A run that somebody ended does not want to be started again.
bool is_interruption(int code) {
  return std::find(kStopSignals.begin(), kStopSignals.end(), code - 128) != kStopSignals.end();
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
  const GivenJob given = parse_train({words.begin() + static_cast<std::ptrdiff_t>(train) + 1, words.end()});
  return given.file.empty() ? job_from_overrides(given.overrides) : load_job(given.file, given.overrides);
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

/// The slots of a hostfile, a rank in each, and the file that mpirun reads.
class HostRanks {
 public:
  explicit HostRanks(const std::string& hostfile) : hosts_(read_hostfile(hostfile)) {
    std::string name = std::filesystem::temp_directory_path() / "hetermoe_hosts_XXXXXX";
    const int file = ::mkstemp(name.data());
    if (file < 0) fail<IoError>(name, "cannot write: {}", std::strerror(errno));
    ::close(file);
    file_ = name;
  }
  ~HostRanks() {
    std::error_code code;
    std::filesystem::remove(file_, code);
  }
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  /// `words`, which may begin with mpirun and options of it, with hosts and number of processes.
  std::vector<std::string> command(std::vector<std::string> words) const {
    write_text(file_, launcher_hostfile(hosts_));
    if (!is_mpirun(words[0])) words.insert(words.begin(), "mpirun");
    const std::vector<std::string> more = {"--hostfile", file_, "--map-by",
                                           "slot",       "-np", std::to_string(num_ranks())};
    words.insert(words.begin() + 1, more.begin(), more.end());
    return words;
  }
  /// The slots of these ranks (ascending) are used no more.
  void drop(const std::vector<i32>& ranks) {
    i32 end = num_ranks();
    for (auto host = hosts_.rbegin(); host != hosts_.rend(); ++host) {
      const i32 begin = end - host->slots;
      host->slots -= static_cast<i32>(
          std::count_if(ranks.begin(), ranks.end(), [&](i32 r) { return r >= begin && r < end; }));
      end = begin;
    }
    std::erase_if(hosts_, [](const Host& host) { return host.slots == 0; });
  }
  i32 num_ranks() const {
    i32 sum = 0;
    for (const Host& host : hosts_) sum += host.slots;
    return sum;
  }

 private:
  std::vector<Host> hosts_;
  std::string file_;
};

/// Ranks that vanished, or have no device of the new plan.
std::vector<i32> unused_ranks(const std::vector<RankEnd>& ends, const std::vector<DeviceId>& used) {
  std::vector<i32> ranks;
  for (const RankEnd& end : ends) {
    const bool has_work = std::any_of(end.devices.begin(), end.devices.end(), [&](DeviceId d) {
      return std::binary_search(used.begin(), used.end(), d);
    });
    if (end.vanished || !has_work) ranks.push_back(end.rank);
  }
  return ranks;
}

/// When ranks vanished and others did not: the command for the devices that are left. Else the same command.
std::vector<std::string> replanned(std::vector<std::string> words, std::optional<HostRanks>& hosts) {
  const Job job = job_of(words);
  const std::vector<RankEnd> ends = read_rank_ends(job.output);
  std::vector<DeviceId> lost, survivors;
  std::vector<i32> lost_ranks;
  for (const RankEnd& end : ends) {
    std::vector<DeviceId>& devices = end.vanished ? lost : survivors;
    devices.insert(devices.end(), end.devices.begin(), end.devices.end());
    if (end.vanished) lost_ranks.push_back(end.rank);
  }
  if (lost.empty() || survivors.empty()) return words;
  std::sort(survivors.begin(), survivors.end());
  const Replanned plan = replan(job, survivors);
  for (const auto& [key, value] : plan.changes) {
    // A flag that is true or false takes its value in the same word.
    if (value == "true" || value == "false")
      words.push_back("--" + key + "=" + value);
    else
      words.insert(words.end(), {"--" + key, value});
  }
  const std::vector<i32> unused = unused_ranks(ends, plan.devices);
  if (hosts) hosts->drop(unused);
  if (const std::size_t count = count_word(words); count > 0)
    words[count] = std::to_string(std::stoll(words[count]) - static_cast<i64>(unused.size()));
  std::cerr << fmt::format("[launch] {} {} with {} {} vanished: planned anew over {} {} ({})",
                           agree(lost_ranks.size(), "rank", "ranks"), fmt::join(lost_ranks, ", "),
                           agree(lost.size(), "device", "devices"), fmt::join(lost, ", "),
                           agree(plan.devices.size(), "device", "devices"), fmt::join(plan.devices, ", "),
                           plan.how)
            << std::endl;
  return words;
}

int finish(const LaunchArguments& options, int code, i64 restarts) {
  if (options.json) print_json({{"exit_code", code}, {"restarts", restarts}});
  return code;
}

/// What a run that was planned anew could not go on with is refused before the first start.
void check_replan(const Job& job) {
  if (!job.routing.record.empty())
    fail<ConfigError>("--replan",
                      "routing.record writes a file for each process, which fewer processes cannot go on "
                      "with: leave one of the two out");
}

int launch(const LaunchArguments& options, std::vector<std::string> words) {
  if (words.empty())
    fail<ConfigError>("launch", "no command: hetermoe launch -- mpirun -np 4 hetermoe train job.yaml");
  std::optional<HostRanks> hosts;
  if (!options.hostfile.empty()) {
    hosts.emplace(options.hostfile);
    if (const std::size_t count = count_word(words); count > 0) {
      fail<ConfigError>(words[count - 1], "got {}, but the hostfile has {}, a process in each: leave it out",
                        words[count], counted(hosts->num_ranks(), "slot"));
    }
  }
  if (options.replan) check_replan(job_of(words));
  pass_signals_on();
  for (i64 restart = 0;; ++restart) {
    if (options.replan) forget_ranks(job_of(words).output);
    const std::vector<std::string> whole = hosts ? hosts->command(words) : words;
    allow_open_mpi(whole);
    const int code = run_once(whole);
    // What mpirun ends with when it was told to stop says nothing of that.
    if (code != 0 && stop_signal != 0) return finish(options, 128 + stop_signal, restart);
    if (code == 0 || code == kWrongUse || is_interruption(code)) return finish(options, code, restart);
    const std::string command = fmt::format("{}", fmt::join(whole, " "));
    if (restart == options.restarts) {
      std::cerr << fmt::format("[launch] {} failed with code {}: no restart is left after {}", command, code,
                               restart)
                << std::endl;
      return finish(options, code, restart);
    }
    std::cerr << fmt::format("[launch] {} failed with code {}: restart {} of {}, from the newest checkpoint",
                             command, code, restart + 1, options.restarts)
              << std::endl;
    if (options.replan) words = replanned(words, hosts);
    wait_unless_stopped(options.pause);
    if (stop_signal != 0) return finish(options, 128 + stop_signal, restart);
  }
}

}  // namespace

std::function<int()> make_launch(Flags& flags) {
  const auto options = std::make_shared<LaunchArguments>();
  flags.add_option("--restarts", options->restarts, "how often a run that failed is started again")
      ->capture_default_str()
      ->range(at_least(0));
  flags.add_flag(
      "--replan", options->replan,
      "when processes vanished, plan anew over the devices of the others (mpirun: with so many fewer)");
  flags.add_option("--hostfile", options->hostfile,
                   "a file of lines HOST slots=N type=NAME: start the command by Open MPI's mpirun, which is "
                   "put in front unless it is there, on these hosts with a process per slot");
  flags.add_option("--pause", options->pause, "seconds before a restart")
      ->capture_default_str()
      ->range(between(0, 86400));
  flags.add_flag("--json", options->json, "print exit code and restarts as JSON at the end");
  flags.add_to_footer("\n\nBehind --: the command and its words, which it gets as they are.");
  return [options, command = flags.behind_dashes()] { return launch(*options, command); };
}

}  // namespace hetermoe
