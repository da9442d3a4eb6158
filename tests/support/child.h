#pragma once
#include <fmt/format.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "tests/support/work_folder.h"

namespace hetermoe {

struct ProgramResult {
  int code = -1;  ///< 128 + signal when a signal ended it
  std::string out, err;
};

using Environment = std::map<std::string, std::string>;

/// A program that runs beside the test; killed if it still does when this goes.
class Child {
 public:
  /// `variables` are added to those of this process.
  Child(const std::string& program, std::vector<std::string> arguments, Environment variables = {}) {
    arguments.insert(arguments.begin(), program);
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      variables.try_emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
    }
    std::vector<std::string> environment;
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, (folder_ / "out").c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, (folder_ / "err").c_str(), O_WRONLY | O_CREAT, 0600);
    const int failed = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, pointers(arguments).data(),
                                     pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    HM_CHECK(failed == 0, "cannot start {}", program);
  }
  ~Child() {
    if (pid_ <= 0) return;
    signal(SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t id() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// Of a program that leads a process group, as setsid starts it.
  void signal_group(int number) const { ::kill(-pid_, number); }
  /// What it has said so far.
  std::string out() const { return read_text(folder_ / "out"); }
  std::string err() const { return read_text(folder_ / "err"); }
  ProgramResult wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out(), err()};
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  }

  WorkFolder folder_;
  pid_t pid_ = 0;
};

}  // namespace hetermoe
