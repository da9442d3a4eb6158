#include "hetermoe/cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstring>
#include <iostream>
#include <set>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/suggest.h"
#include "hetermoe/base/version.h"
#include "hetermoe/cli/option_hint.h"
#include "hetermoe/comm/processes.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/run/results.h"

namespace hetermoe {
namespace {

std::string with_hyphens(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// Spellings of a key of the job: with '_' and, when that differs, with '-'.
std::string spellings(const FieldDoc& option) {
  const std::string dashed = with_hyphens(option.name);
  const bool two = dashed != option.name;
  std::string names = "--" + option.name + (two ? ",--" + dashed : "");
  if (option.type == type_text<bool>()) names += ",!--no-" + option.name + (two ? ",!--no-" + dashed : "");
  return names;
}

/// Most job keys stay out of --help: `hetermoe options` lists them.
const char* const kHiddenGroup = "";
/// The others, which nearly every job writes.
const char* const kShownGroup = "Keys of the job; `hetermoe options` lists all";

bool is_shown(const std::string& key) {
  static const std::set<std::string> shown = {
      "model",         "cluster",     "strategy",        "output",           "plan.file",
      "data.paths",    "train.steps", "train.sequences", "train.seq_len",    "train.init_from",
      "train.save_hf", "run.device",  "clock.kind",      "checkpoint.every", "train.lora.rank"};
  return shown.contains(key);
}

/// Whether an option is a key of the job.
bool is_job_key(const CLI::Option* option) {
  return option != nullptr && (option->get_group() == kHiddenGroup || option->get_group() == kShownGroup);
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

/// "routing make": the command's name below the program's.
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr || parent->get_parent() == nullptr ? app.get_name()
                                                              : full_name(*parent) + " " + app.get_name();
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

[[noreturn]] void refuse_extra(const CLI::App& app, const std::string& word) {
  const std::string name_of_app = app.get_parent() == nullptr ? "" : " " + full_name(app);
  const std::string help = fmt::format("`hetermoe{} --help` says what it takes.", name_of_app);
  if (const std::vector<std::string> names = command_names(app); !names.empty() && !word.starts_with('-'))
    fail<ConfigError>(full_name(app) + " " + word, "unknown command.{}", known_names_hint(word, names));
  if (!word.starts_with('-')) fail<ConfigError>(word, "unexpected word. {}", help);
  const std::string flag = word.substr(0, word.find('='));
  const std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  const std::string near = nearest_option(name, long_names(app));
  fail<ConfigError>(flag, "unknown option of {}.{} {}", full_name(app),
                    near.empty() ? "" : fmt::format(" Did you mean \"--{}\"?", near), help);
}

/// "Could not convert: --seq = x" in our words.
[[noreturn]] void refuse_value(const CLI::App& app, const std::string& message) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || message.find(option->get_name() + " = ") == std::string::npos) continue;
    const std::string type = option->get_type_name();
    fail<ConfigError>(option->get_name(), "wrong type: got \"{}\", expected {}", option->results().back(),
                      type == "FLOAT"                   ? "a number"
                      : type == "INT" || type == "UINT" ? "an integer"
                                                        : type);
  }
  if (const std::vector<std::string> names = command_names(app);
      !names.empty() && app.get_subcommands().empty())
    fail<ConfigError>(full_name(app), "got no command, expected one.{}", known_names_hint("", names));
  fail<ConfigError>(full_name(app), "{}", message);
}

/// Takes the words behind "--" away where they are the command line of another program.
std::vector<std::string> take_behind_dashes(std::vector<std::string>& words) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const auto is_named = [&](const Command& command) { return !words.empty() && command.name == words[0]; };
  const auto command = std::find_if(commands().begin(), commands().end(), is_named);
  if (dashes == words.end() || command == commands().end() || !command->starts_another) return {};
  std::vector<std::string> taken(dashes + 1, words.end());
  words.erase(dashes, words.end());
  return taken;
}

/// An empty word where a file is meant would be taken for none.
void check_not_empty(const std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i].empty() && !words[i - 1].starts_with('-'))
      fail<ConfigError>(words[0], "word {} is empty, expected the name of a file", i);
  }
}

void check_command(const std::vector<std::string>& words) {
  if (words[0].starts_with('-')) return;
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.name);
  if (std::find(names.begin(), names.end(), words[0]) != names.end()) return;
  fail<ConfigError>(words[0], "unknown command.{}", known_names_hint(words[0], names));
}

/// Throws ConfigError for words that `app` does not take, CLI::Success when they ask for help.
void parse(CLI::App& app, const std::vector<std::string>& given) {
  std::vector<std::string> words = join_truth_values(given);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  const std::string last_word = words.empty() ? "" : words.front();
  try {
    app.parse(words);
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ArgumentMismatch&) {
    fail<ConfigError>(last_word, "needs a value after it");
  } catch (const CLI::ParseError& error) {
    const CLI::App* used = &app;
    while (!used->get_subcommands().empty()) used = used->get_subcommands().front();
    const std::vector<std::string> extras = used->remaining();
    if (!extras.empty()) refuse_extra(*used, extras.front());
    refuse_value(*used, error.what());
  }
}

void check_is_alone(const std::string& command) {
  const i32 started = read_launch(environment_variable).num_ranks;
  if (started == 1) return;
  fail<ConfigError>(
      command,
      "runs in one process, but a launcher started {} (mpirun, srun or torchrun, as the environment says). "
      "Start it by itself: of all commands train, launch and doctor use several processes",
      started);
}

template <class T>
std::vector<double> as_numbers(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) return {static_cast<double>(value)};
  return {};
}
template <class T>
std::vector<double> as_numbers(const std::vector<T>& values) {
  std::vector<double> out;
  for (const T& value : values) {
    for (const double number : as_numbers(value)) out.push_back(number);
  }
  return out;
}

template <class T>
FlagOption add(CLI::App& app, const std::shared_ptr<FlagChecks>& checks, const std::string& names, T& value,
               const std::string& help) {
  const std::size_t long_name = names.find("--");
  const std::string name = names.substr(long_name == std::string::npos ? 0 : long_name);
  return {app.add_option(names, value, help), name.substr(0, name.find(',')),
          [&value] { return as_numbers(value); }, checks};
}

}  // namespace

FlagOption& FlagOption::required() {
  option_->required();
  return *this;
}
FlagOption& FlagOption::capture_default_str() {
  option_->capture_default_str();
  return *this;
}
FlagOption& FlagOption::delimiter(char separator) {
  option_->delimiter(separator);
  return *this;
}

FlagOption& FlagOption::range(const Range& range) {
  checks_->push_back([option = option_, name = name_, values = values_, range] {
    if (option->count() == 0) return;
    for (const double value : values()) detail::check_range(name, value, range);
  });
  return *this;
}

FlagOption& FlagOption::is_output() {
  checks_->push_back([option = option_] {
    for (const std::string& path : option->results()) check_output_file(path);
  });
  return *this;
}

Flags::Flags(CLI::App& app, std::vector<std::string> behind_dashes)
    : app_(&app), behind_dashes_(std::move(behind_dashes)), checks_(std::make_shared<FlagChecks>()) {
  app.parse_complete_callback([checks = checks_] {
    for (const std::function<void()>& check : *checks) check();
  });
}

FlagOption Flags::add_option(const std::string& names, std::string& value, const std::string& help) {
  return add(*app_, checks_, names, value, help);
}
FlagOption Flags::add_option(const std::string& names, double& value, const std::string& help) {
  return add(*app_, checks_, names, value, help);
}
FlagOption Flags::add_option(const std::string& names, i64& value, const std::string& help) {
  return add(*app_, checks_, names, value, help);
}
FlagOption Flags::add_option(const std::string& names, std::vector<std::string>& value,
                             const std::string& help) {
  return add(*app_, checks_, names, value, help);
}
FlagOption Flags::add_option(const std::string& names, std::vector<i64>& value, const std::string& help) {
  return add(*app_, checks_, names, value, help);
}
FlagOption Flags::add_option(const std::string& names, std::vector<i32>& value, const std::string& help) {
  return add(*app_, checks_, names, value, help);
}
void Flags::add_flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help);
}
Flags Flags::add_command(const std::string& name, const std::string& summary, const std::string& example) {
  CLI::App* sub = app_->add_subcommand(name, summary);
  sub->footer("Example:\n  " + example);
  app_->require_subcommand(1);
  return Flags(*sub);
}
bool Flags::is_named() const { return app_->parsed(); }
void Flags::add_to_footer(const std::string& text) { app_->footer(app_->get_footer() + text); }

void allow_overrides(Flags& flags) {
  CLI::App& app = flags.app();
  for (const FieldDoc& option : job_fields()) {
    if (app.get_option_no_throw("--" + option.name) != nullptr) continue;
    // The name that commands about plans have for theirs.
    const bool is_plan = option.name == "plan.file" && app.get_option_no_throw("--plan") == nullptr;
    const std::string names = spellings(option) + (is_plan ? ",--plan" : "");
    CLI::Option* added = option.type == type_text<bool>() ? app.add_flag(names) : app.add_option(names);
    added->description(option.help)
        ->group(is_shown(option.name) ? kShownGroup : kHiddenGroup)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  flags.add_to_footer(
      "\n\nEvery key of a job file is an option too, as --train.learning_rate 1e-4; `hetermoe options` lists "
      "them.");
}

/// A plan says all of itself: what is written beside it would have no effect. `plan`: the option for one, or
/// null.
static void check_beside_plan(const Overrides& overrides, const CLI::Option* plan) {
  std::string file = plan != nullptr && plan->count() > 0 ? plan->results().back() : "";
  for (const auto& [key, value] : overrides)
    if (key == "plan.file") file = value;
  if (file.empty()) return;
  for (const auto& [key, value] : overrides) {
    if (key.starts_with("plan.") && key != "plan.file")
      fail<ConfigError>("--" + key, "got {}, but the plan comes from {}: change it there, or leave one out",
                        value, file);
    if (key != "train.microbatches") continue;
    const Json json = read_json(file);
    if (!json.contains("groups") || json["groups"].empty() || !json["groups"][0].contains("microbatches"))
      continue;
    const std::string own = std::to_string(json["groups"][0]["microbatches"].size());
    if (value != own)
      fail<ConfigError>("--" + key, "got {}, but the plan of {} has {}: leave it out, or make another plan",
                        value, file, own);
  }
}

Overrides overrides_of(const Flags& flags) {
  Overrides overrides;
  const auto is_given = [&](const CLI::Option* option) { return option != nullptr && option->count() > 0; };
  const CLI::Option* strategy = flags.app().get_option_no_throw("--strategy");
  if (is_given(strategy) && is_job_key(strategy) && is_given(flags.app().get_option_no_throw("--plan")))
    fail<ConfigError>("--strategy", "got {} with --plan: that file says all of a plan, give one of them",
                      strategy->results().back());
  for (const FieldDoc& key : job_fields()) {
    const CLI::Option* option = flags.app().get_option_no_throw("--" + key.name);
    if (is_job_key(option) && option->count() > 0) overrides.emplace_back(key.name, option->results().back());
  }
  check_beside_plan(overrides, flags.app().get_option_no_throw("--plan"));
  return overrides;
}

bool gives(const Overrides& overrides, const std::string& key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const auto& given) { return given.first == key; });
}

GivenJob parse_train(const std::vector<std::string>& words) {
  CLI::App app("train a model", "train");
  Flags flags(app);
  const std::function<int()> owner = make_train(flags);  // of the variables that parsing fills
  parse(app, words);
  const std::vector<std::string> file = app.get_option("job")->results();
  return {file.empty() ? "" : file[0], overrides_of(flags)};
}

int run_program(std::vector<std::string> words) {
  CLI::App app("hetermoe: plan, simulate and run MoE training on clusters that mix newer and older GPUs",
               "hetermoe");
  app.set_version_flag("--version", std::string("hetermoe ") + version());
  app.require_subcommand(1);
  const std::vector<std::string> behind_dashes = take_behind_dashes(words);
  std::vector<std::pair<CLI::App*, std::function<int()>>> runners;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->footer(std::string("Example:\n  ") + command.example);
    Flags flags(*sub, behind_dashes);
    runners.emplace_back(sub, command.make(flags));
  }
  if (words.empty() || words == std::vector<std::string>{"help"}) {
    std::cout << app.help();
    return words.empty() ? 2 : 0;
  }
  if (words.size() == 2 && words[0] == "help") words = {words[1], "--help"};
  check_command(words);
  check_not_empty(words);
  try {
    parse(app, words);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  }
  for (std::size_t i = 0; i < runners.size(); ++i) {
    const auto& [sub, runner] = runners[i];
    if (!sub->parsed()) continue;
    if (commands()[i].alone) check_is_alone(commands()[i].name);
    return runner();
  }
  return 2;
}

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const WriteError*>(&error) != nullptr) return 1;
  const bool wrong = dynamic_cast<const ConfigError*>(&error) != nullptr ||
                     dynamic_cast<const IoError*>(&error) != nullptr ||
                     dynamic_cast<const InputError*>(&error) != nullptr;
  return wrong ? 2 : 1;
}

void check_step_size(i64 sequences, i64 tokens, i64 seq_len) {
  if (sequences > 0 && tokens > 0)
    fail<ConfigError>("--tokens",
                      "got {} with --sequences {}: both say how large a step is, give one of them", tokens,
                      sequences);
  const i64 all = sequences > 0 ? sequences : tokens / seq_len;
  if (all > kMostSequences)
    fail<ConfigError>(sequences > 0 ? "--sequences" : "--tokens",
                      "got {} sequences of {} tokens in a step, expected at most {}, which is what a job can "
                      "have (train.sequences): give fewer",
                      all, seq_len, kMostSequences);
}

void add_wire_options(Flags& flags, const std::string& when, std::string& wire, std::string& wire_reduce) {
  flags.add_option("--wire", wire,
                   when +
                       "how rows travel: fp32, bf16, fp16, or fp8_row and fp8_group for those of experts "
                       "(docs/precision.md) [default: in --dtype]");
  flags
      .add_option("--wire-reduce", wire_reduce,
                  when +
                      "how gradients travel to the device that sums them: bf16, or fp32, which is as they "
                      "are kept")
      ->capture_default_str();
}

Dtype parse_dtype(const std::string& text) {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
    if (text == name_of(dtype)) return dtype;
  }
  fail<ConfigError>("--dtype", "got \"{}\", expected fp32, bf16 or fp16", text);
}

int code_of_end(const std::vector<StrategyRun>& runs, i64 steps, const std::string& what_is_left,
                const Processes& processes) {
  for (const StrategyRun& run : runs) {
    const TrainOutcome& out = run.outcome;
    if (out.stopped_by == 0) continue;
    processes.gather("");
    const int signal = out.stopped_by;
    if (processes.rank() == 0) {
      std::cout << std::flush;
      const i64 done = out.first_step + std::ssize(out.records);
      const std::string when = done > 0 ? fmt::format("after step {}", done) : "before the first step";
      std::cerr << fmt::format(
          "interrupted by {} {} of {}{}{}: exit code {}\n", std::string("SIG") + ::sigabbrev_np(signal), when,
          steps, runs.size() > 1 ? " of " + run.strategy : "", done > 0 ? what_is_left : "", 128 + signal);
    }
    return 128 + signal;
  }
  return 0;
}

void print_json(const Json& json) {
  // Nobody reads so much, and most of it would be blanks.
  constexpr std::size_t kMostReadable = 1 << 20;
  const std::string text = json.dump();
  std::cout << (text.size() > kMostReadable ? text : json.dump(2)) << "\n";
}

const char* build_type() { return HM_BUILD_TYPE; }

}  // namespace hetermoe
