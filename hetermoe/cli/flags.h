#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/base/fields.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hetermoe {

/// Checks that run when all words are parsed.
using FlagChecks = std::vector<std::function<void()>>;

/// One option of a command, for what is said of it after it was added:
/// `flags.add_option("--seq", options.seq_len, "tokens per
/// sequence")->capture_default_str()->range(at_least(1))`.
class FlagOption {
 public:
  /// values: of the variable, as numbers; empty for text.
  FlagOption(CLI::Option* option, std::string name, std::function<std::vector<double>()> values,
             std::shared_ptr<FlagChecks> checks)
      : option_(option), name_(std::move(name)), values_(std::move(values)), checks_(std::move(checks)) {}
  FlagOption* operator->() { return this; }

  FlagOption& required();
  FlagOption& capture_default_str();      ///< --help shows the value that the variable has now
  FlagOption& delimiter(char separator);  ///< of the items of a list
  /// Every given value must be in the range, NaN never is. Parsing throws ConfigError then.
  FlagOption& range(const Range& range);
  /// Names a file that the command will write. Parsing throws IoError when that cannot be, before any work is
  /// done.
  FlagOption& is_output();

 private:
  CLI::Option* option_;
  std::string name_;
  std::function<std::vector<double>()> values_;
  std::shared_ptr<FlagChecks> checks_;
};

/// The options of a command. Only command.cpp sees the library behind it, whose header costs more compile
/// time than a whole command. Variables are filled when the command line is parsed and must outlive the
/// flags.
class Flags {
 public:
  explicit Flags(CLI::App& app, std::vector<std::string> behind_dashes = {});

  FlagOption add_option(const std::string& names, std::string& value, const std::string& help);
  FlagOption add_option(const std::string& names, double& value, const std::string& help);
  FlagOption add_option(const std::string& names, i64& value, const std::string& help);
  FlagOption add_option(const std::string& names, std::vector<std::string>& value, const std::string& help);
  FlagOption add_option(const std::string& names, std::vector<i64>& value, const std::string& help);
  FlagOption add_option(const std::string& names, std::vector<i32>& value, const std::string& help);
  void add_flag(const std::string& names, bool& value, const std::string& help);
  void add_to_footer(const std::string& text);
  /// A command of its own below this one, of which one must be named: `hetermoe routing make`.
  Flags add_command(const std::string& name, const std::string& summary, const std::string& example);
  /// Words behind --, as they are: the command line of another program (Command::starts_another).
  const std::vector<std::string>& behind_dashes() const { return behind_dashes_; }
  bool is_named() const;  ///< the command was named in the words that were parsed

  CLI::App& app() const { return *app_; }

 private:
  CLI::App* app_;
  std::vector<std::string> behind_dashes_;
  std::shared_ptr<FlagChecks> checks_;
};

}  // namespace hetermoe
