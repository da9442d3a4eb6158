#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/cluster/cluster.h"

namespace hetermoe {

/// One command of the program. A new command is one file and one row of commands().
struct Command {
  const char* name;
  const char* summary;
  const char* example;  ///< shown by --help
  /// Adds the command's options to `app` and returns what runs it after parsing: the exit code.
  std::function<int()> (*make)(CLI::App& app);
};
const std::vector<Command>& commands();

using Overrides = std::vector<std::pair<std::string, std::string>>;

/// Makes every key of a job file an option of `app`, as --train.steps 20 or --train.steps=20; '-' may stand
/// for
/// '_'. What is true or false is a flag with a contrary: --plan.row_dedup, --no-plan.row_dedup, and takes
/// =true or =false. To be called after the command's own options; names that these take stay theirs.
void allow_overrides(CLI::App& app);
/// What was given so, in the order of the job's keys.
Overrides overrides_of(const CLI::App& app);

/// Parses the words after the program's name and runs the command. Returns the exit code; throws ConfigError
/// for words that are no command, option or value of one.
int run_program(std::vector<std::string> words);

/// Result for machines on stdout.
void print_json(const Json& json);

/// Value of --dtype. Throws ConfigError.
Dtype parse_dtype(const std::string& text);

const char* build_type();  ///< CMake's

std::function<int()> make_compare(CLI::App& app);
std::function<int()> make_doctor(CLI::App& app);
std::function<int()> make_inspect(CLI::App& app);
std::function<int()> make_launch(CLI::App& app);
std::function<int()> make_options(CLI::App& app);
std::function<int()> make_plan(CLI::App& app);
std::function<int()> make_profile(CLI::App& app);
std::function<int()> make_report(CLI::App& app);
std::function<int()> make_simulate(CLI::App& app);
std::function<int()> make_train(CLI::App& app);
std::function<int()> make_verify(CLI::App& app);

}  // namespace hetermoe
