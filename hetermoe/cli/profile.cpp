#include "hetermoe/profile/profiler.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/gpu_run.h"

namespace hetermoe {
namespace {

struct ProfileArguments {
  std::string model = "demo", dtype, output;
  ProfileOptions profile;
  bool json = false;
};

std::string size_of(const ProfileEntry& entry) {
  switch (entry.op) {
    case ProfiledOp::kAttention:
    case ProfiledOp::kDenseAttention:
      return fmt::format("{} of {}", counted(entry.sequences, "sequence"), entry.seq_len);
    case ProfiledOp::kExperts:
      return fmt::format("{}, {}", counted(entry.experts, "expert"), counted(entry.rows, "row"));
    case ProfiledOp::kUpdate:
    case ProfiledOp::kNorm:
      return format_count(static_cast<double>(entry.params)) + " parameters";
    case ProfiledOp::kEmbed:
    case ProfiledOp::kHead:
    case ProfiledOp::kDispatch:
    case ProfiledOp::kCombine:
    case ProfiledOp::kBalance:
    case ProfiledOp::kGap:
      return counted(entry.tokens, "token");
    default:
      return fmt::format("{}, {}", counted(entry.rows, "row"), format_bytes(entry.bytes));
  }
}

void print_profile(const ProfileFile& profile) {
  std::cout << fmt::format("{} on {} ({}, {}), {}\n\n", profile.model, profile.device, name_of(profile.dtype),
                           counted(profile.threads, "thread"), profile.date);
  Table table({"op", "phase", "size", "median", "10 to 90 %", "runs", "memory"});
  for (const ProfileEntry& entry : profile.entries) {
    table.add_row({name_of(entry.op), name_of(entry.phase), size_of(entry), format_seconds(entry.seconds),
                   format_seconds(entry.p10) + " to " + format_seconds(entry.p90), std::to_string(entry.runs),
                   format_bytes(entry.peak_bytes)});
  }
  std::cout << table.str();
}

/// What a run on this device computes in unless it is asked otherwise.
Dtype own_dtype(const std::string& name) {
  const c10::Device device = find_device(name, "--device");
  return device.is_cpu() ? Dtype::kFp32 : dtype_of_gpu(compute_capability(device));
}

int profile(const ProfileArguments& options) {
  ProfileOptions what = options.profile;
  what.dtype = options.dtype.empty() ? own_dtype(what.device) : parse_dtype(options.dtype);
  const ModelConfig model = load_model(options.model);
  if (const std::string why = what.steps ? why_no_steps(model, what) : ""; !why.empty())
    std::cerr << why << "\n";
  const bool shows_progress = isatty(STDERR_FILENO) != 0;
  const ProfileFile measured = profile_device(model, what, [&](const ProfileEntry& entry, i64 left) {
    if (shows_progress) std::cerr << fmt::format("\r{:>4} to go after {:<16}", left, name_of(entry.op));
  });
  if (shows_progress) std::cerr << "\n";
  if (!options.output.empty()) write_profile(measured, options.output);
  if (options.json)
    print_json(write_fields(measured));
  else
    print_profile(measured);
  if (options.output.empty() || options.json) return 0;
  std::cout << fmt::format(
      "\nprofile: {0}\nnext: give the device's type in a cluster file the line  profile: {0}\n",
      options.output);
  return 0;
}

}  // namespace

std::function<int()> make_profile(Flags& flags) {
  const auto options = std::make_shared<ProfileArguments>();
  ProfileOptions& what = options->profile;
  flags.add_option("--model", options->model, "a name of configs/models, a config.json or its folder")
      ->capture_default_str();
  flags.add_option("--device", what.device, "cpu, cuda or cuda:N")->capture_default_str();
  flags.add_option("--dtype", options->dtype,
                   "compute dtype: fp32, bf16 or fp16 [default: that of a run on it]");
  flags.add_option("--threads", what.threads, "threads of an op on a CPU")
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_option("--seq", what.seq_lens, "tokens per sequence, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_option("--sequences", what.sequences, "sequences of a microbatch on the device")
      ->delimiter(',')
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_option("--experts", what.experts, "experts computed together [default: 1, a quarter and all]")
      ->delimiter(',')
      ->range(at_least(1));
  flags.add_option("--rows", what.rows_per_expert, "rows of each expert")
      ->delimiter(',')
      ->capture_default_str()
      ->range(at_least(1));
  flags.add_flag("!--no-steps", what.steps, "measure ops one by one alone, and no whole steps");
  flags.add_option("--budget", what.timing.budget, "seconds of timed runs per entry")
      ->capture_default_str()
      ->range(between(0, 3600));
  flags.add_option("-o,--output", options->output, "write the profile to this file")->is_output();
  flags.add_flag("--json", options->json, "print the profile as JSON");
  return [options] { return profile(*options); };
}

}  // namespace hetermoe
