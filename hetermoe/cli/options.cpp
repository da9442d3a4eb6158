#include <iostream>
#include <memory>

#include "hetermoe/cli/command.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {
namespace {

struct OptionsArguments {
  std::string job;
  bool markdown = false, json = false, strategies = false;
};

std::string table_cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// The text of docs/options.md.
std::string markdown() {
  std::string text =
      "# Options of a job\n\n"
      "Made by `hetermoe options --markdown`; a test compares this page with the program.\n\n"
      "A job is a YAML file. A key a.b is `b` below `a` in the file and `--a.b VALUE` on the command line, "
      "which "
      "overrides the file.\nLists are written `[0, 1]` or, on the command line, `0,1`. `--x`, `--no-x`, "
      "`--x=false` "
      "set what is true or false.\n"
      "The default `null` means: left to the strategy.\n\n"
      "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const FieldDoc& option : job_fields()) {
    text += fmt::format("| `{}` | {} | `{}` | {} |\n", option.name, option.type, option.default_value,
                        table_cell(option.help));
  }
  return text;
}

void print_table() {
  Table table({"key", "type", "default", "meaning"});
  table.align(2, Align::kLeft);
  for (const FieldDoc& option : job_fields()) {
    table.add_row({option.name, option.type, option.default_value, option.help});
  }
  std::cout << table.str() << "\nin a job file: train: {steps: 20}   as an option: --train.steps 20\n";
}

void print_strategies(bool json) {
  if (json) {
    Json rows = Json::array();
    for (const Strategy& strategy : strategies())
      rows.push_back({{"strategy", strategy.name}, {"meaning", strategy.summary}});
    return print_json(rows);
  }
  Table table({"strategy", "who does what"});
  for (const Strategy& strategy : strategies()) table.add_row({strategy.name, strategy.summary});
  std::cout << table.str();
}

Json documentation_json() {
  Json rows = Json::array();
  for (const FieldDoc& option : job_fields()) {
    rows.push_back({{"key", option.name},
                    {"type", option.type},
                    {"default", Json::parse(option.default_value)},
                    {"meaning", option.help}});
  }
  return rows;
}

int options_command(const OptionsArguments& options, const Overrides& overrides) {
  if (!options.job.empty() || !overrides.empty()) {
    const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
    print_json(to_json(job));
  } else if (options.strategies) {
    print_strategies(options.json);
  } else if (options.markdown) {
    std::cout << markdown();
  } else if (options.json) {
    print_json(documentation_json());
  } else {
    print_table();
  }
  return 0;
}

}  // namespace

std::function<int()> make_options(Flags& flags) {
  const auto options = std::make_shared<OptionsArguments>();
  flags.add_option("job", options->job, "job file (YAML): print its resolved configuration, as JSON");
  flags.add_flag("--markdown", options->markdown, "print the keys as docs/options.md");
  flags.add_flag("--json", options->json, "print the keys as JSON");
  flags.add_flag("--strategies", options->strategies, "print what each strategy does");
  allow_overrides(flags);
  return [options, flags] { return options_command(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
