#pragma once
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/cli/flags.h"
#include "hetermoe/cluster/cluster.h"

namespace hetermoe {

class Processes;
struct StrategyRun;

/// One command of the program. A new command is one file and one row of commands().
struct Command {
  const char* name;
  const char* summary;
  const char* example;  ///< shown by --help
  /// Adds the command's options to `flags` and returns what runs it after parsing: the exit code.
  std::function<int()> (*make)(Flags& flags);
  /// Several processes that a launcher started would each do the whole work, and write to the same place.
  bool alone = false;
  bool starts_another = false;  ///< words behind -- are the command line of another program
};
const std::vector<Command>& commands();

using Overrides = std::vector<std::pair<std::string, std::string>>;

/// Makes every key of a job file an option of `flags`, as --train.steps 20 or --train.steps=20; '-' may stand
/// for '_'. A key that is true or false is a flag with a contrary: --plan.row_dedup, --no-plan.row_dedup, and
/// takes =true or =false. To be called after the command's own options, which keep their names.
void allow_overrides(Flags& flags);
/// The overrides that were given, in the order of the job's keys.
Overrides overrides_of(const Flags& flags);
/// Whether the key of a job was given as a flag.
bool gives(const Overrides& overrides, const std::string& key);

/// A job as the words of a command line name it.
struct GivenJob {
  std::string file;  ///< empty = none
  Overrides overrides;
};
/// The job of the words after `hetermoe train`. Throws ConfigError for words that it does not take.
GivenJob parse_train(const std::vector<std::string>& words);

/// Parses the words after the program's name and runs the command. Returns the exit code; throws ConfigError
/// for words that are no command, option or value of one.
int run_program(std::vector<std::string> words);

/// Exit code of the program: 2 for wrong use or wrong input, 1 for a run that failed.
int exit_code_of(const std::exception& error);

/// Exit code of what was executed: 128 + the signal that ended it before its last step, which is said on
/// stderr. Collective: no process of a run ends before rank 0 has come here, because launchers end the others
/// when one ends so. what_is_left: words on how to go on.
int code_of_end(const std::vector<StrategyRun>& runs, i64 steps, const std::string& what_is_left,
                const Processes& processes);

/// Result for machines on stdout.
void print_json(const Json& json);

/// At most one of them says how large a step of such sequences is, and a job can have it. Throws ConfigError.
void check_step_size(i64 sequences, i64 tokens, i64 seq_len);
/// --wire and --wire-reduce. when: what their help begins with.
void add_wire_options(Flags& flags, const std::string& when, std::string& wire, std::string& wire_reduce);
/// Value of --dtype. Throws ConfigError.
Dtype parse_dtype(const std::string& text);

const char* build_type();  ///< CMake's

std::function<int()> make_compare(Flags& flags);
std::function<int()> make_convert(Flags& flags);
std::function<int()> make_data(Flags& flags);
std::function<int()> make_doctor(Flags& flags);
std::function<int()> make_generate(Flags& flags);
std::function<int()> make_inspect(Flags& flags);
std::function<int()> make_launch(Flags& flags);
std::function<int()> make_options(Flags& flags);
std::function<int()> make_plan(Flags& flags);
std::function<int()> make_profile(Flags& flags);
std::function<int()> make_report(Flags& flags);
std::function<int()> make_routing(Flags& flags);
std::function<int()> make_simulate(Flags& flags);
std::function<int()> make_train(Flags& flags);
std::function<int()> make_upcycle(Flags& flags);
std::function<int()> make_verify(Flags& flags);
std::function<int()> make_watch(Flags& flags);

}  // namespace hetermoe
