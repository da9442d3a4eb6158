#include <fmt/ranges.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/dry_run.h"
#include "hetermoe/comm/preflight.h"
#include "hetermoe/data/dataset.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/report/progress.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/checkpoint/output_lock.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/growth/growing_job.h"
#include "hetermoe/train/job/epochs.h"
#include "hetermoe/train/job/gpu_run.h"
#include "hetermoe/train/run/stop.h"
#include "hetermoe/train/session/presence.h"
#include "hetermoe/train/session/replan.h"
#include "hetermoe/weights/hf_writer.h"

namespace hetermoe {
namespace {

struct TrainArguments {
  std::string job;
  bool json = false, dry_run = false;
};

void print_run(const Job& job, const StrategyRun& run, const std::filesystem::path& report) {
  const TrainOutcome& out = run.outcome;
  const bool did_nothing = out.stopped_by == 0 && out.records.empty();
  if (!did_nothing) std::cout << strategy_table({run});
  if (const std::vector<Validation> validations = out.validations(); !validations.empty()) {
    const Validation& last = validations.back();
    const char* unit = token_word(job.data);
    std::cout << fmt::format(
        "validation loss {:.4f} nats per {}, perplexity {:.4g}; entropy of single {}s {:.4f}\n", last.loss,
        unit, std::exp(last.loss), unit, out.unigram_entropy);
    for (const Validation::OfSource& source : last.sources) {
      std::cout << fmt::format("  {}: loss {:.4f}, perplexity {:.4g}\n", source.name, source.loss,
                               std::exp(source.loss));
    }
  }
  if (did_nothing) {
    const std::string has = counted(out.first_step, "step");
    std::cout << (out.first_step == 0 ? "nothing to do: train.steps is 0\n"
                  : out.first_step > job.train.steps
                      ? fmt::format("nothing to do: the checkpoint has {}, more than train.steps {}\n", has,
                                    job.train.steps)
                      : fmt::format("nothing left to do: the checkpoint has {} of {}\n", has,
                                    job.train.steps));
  }
  std::cout << "report: " << report.string() << "\n";
}

/// Results of another run are replaced, but not without a word.
void tell_of_other_results(const Job& job, i64 first_step) {
  if (first_step > 0) return;  // the run goes on
  const std::filesystem::path path = std::filesystem::path(job.output) / "job.json";
  if (!std::filesystem::exists(path)) return;
  std::vector<std::string> keys;
  try {
    for (const auto& [key, value] : changes_between(load_job(path.string(), {}), job)) keys.push_back(key);
  } catch (const Error&) {
    keys = {"a job that cannot be read"};
  }
  if (keys.empty()) return;
  std::cerr << fmt::format(
                   "[{}] has the results of another run, which differs in {}: its metrics.jsonl is begun "
                   "anew now, its other files are replaced as this run goes on",
                   job.output, fmt::join(keys, ", "))
            << std::endl;
}

/// A file that could not be read or written after the first step: nothing is wrong with the job, and another
/// try may succeed.
class BrokenRun : public Error {
  using Error::Error;
};

/// Every pair of processes exchanges messages; rank 0 tells which are slow.
void preflight(const Job& job, const Processes& processes) {
  PreflightOptions how;
  how.device = find_device_in_turn(job.run.device, processes.local_rank(), "run.device");
  for (const std::string& complaint :
       check_processes(processes, pair_transport(processes, how.device, job.run.transport), how)) {
    if (processes.rank() == 0) std::cerr << "[preflight] " << complaint << std::endl;
  }
}

/// A run that goes on keeps the learning rate with which it began, unless the job writes one.
void keep_learning_rate(Job& job, const Processes& processes) {
  if (!job.usual.learning_rate || !job.checkpoint.resume) return;
  const std::optional<double> before = learning_rate_of_checkpoint(job.output, processes);
  if (!before) return;
  job.train.learning_rate = *before;
  job.usual.learning_rate = false;
}

/// The output folder and that of train.save_hf, held for this run alone by rank 0.
class HeldFolders {
 public:
  HeldFolders(const Job& job, std::function<void(const std::string&)> tell) : tell_(std::move(tell)) {
    output_.emplace(job.output);
    if (!job.train.save_hf.empty())
      weights_.emplace(folder_path(job.train.save_hf),
                       OutputLockOptions{.host = "", .key = "train.save_hf", .beside = true});
    for (const auto* taken : {&output_, &weights_}) {
      if (*taken && !(*taken)->note().empty()) tell_((*taken)->note());
    }
  }

  /// Whether the output folder was removed or renamed, which is told once.
  bool lost() {
    const std::string note = lost_ ? "" : output_->lost();
    if (!note.empty()) tell_(note);
    return lost_ = lost_ || !note.empty();
  }

 private:
  std::function<void(const std::string&)> tell_;
  std::optional<OutputLock> output_, weights_;
  bool lost_ = false;
};

/// Runs the job; only rank 0 talks. `begun` is set when a step has ended.
int train(const TrainArguments& options, Job job, const Processes& processes, bool& begun) {
  const bool talks = processes.rank() == 0;
  const auto tell = [&](const std::string& text) {
    if (talks) (options.json ? std::cerr : std::cout) << text << std::endl;
  };
  std::optional<HeldFolders> held;
  if (talks) held.emplace(job, tell);
  if (!processes.alone() && job.train.preflight) preflight(job, processes);
  if (const std::string chosen = set_gpu_defaults(job, {job.strategy}, processes); !chosen.empty())
    tell(chosen);
  keep_learning_rate(job, processes);
  JobOfSteps of_steps = with_steps(std::move(job));
  job = std::move(of_steps.job);
  stop_on_interrupt();
  ProgressOptions style;
  if (options.json || !talks) style.style = ProgressStyle::kNone;
  const bool emulated = job.clock.kind != ClockKind::kReal;
  if (emulated) style.whose_time = " of this machine's time";
  bool key_told = false;
  Progress progress("training", job.train.steps, style);
  const auto on_step = [&](const std::string&, const StepRecord& record) {
    begun = true;
    if (held && job.checkpoint.every > 0 && record.step % job.checkpoint.every == 0) held->lost();
    progress.update(record.step, fmt::format("loss {:.4f}", record.loss));
    for (const std::string& warning : record.warnings) {
      if (talks && !options.json) std::cout << fmt::format("step {}: {}", record.step, warning) << std::endl;
    }
    if (talks && !options.json && (record.step % job.train.log_every == 0 || record.step == 1)) {
      if (!std::exchange(key_told, true)) std::cout << log_line_key(record, emulated) << std::endl;
      std::cout << log_line(record, job.train.steps, emulated) << std::endl;
    }
  };
  const RunHooks hooks{.on_note = tell, .on_begin = [&](i64 first_step) {
                         if (talks) tell_of_other_results(job, first_step);
                       }};
  const JobRunOptions how{.checkpoints = Checkpoints::kOn, .hooks = hooks, .data = of_steps.data};
  const TrainedJob done =
      grows(job) ? train_growing_job(job, how, on_step, processes) : train_job(job, how, on_step, processes);
  const std::vector<StrategyRun>& runs = done.runs;
  progress.finish();
  const bool lost = held && held->lost();
  if (talks) {
    const std::filesystem::path report = write_results(job, done.model, load_cluster(done.cluster), runs);
    if (options.json)
      print_json(to_json(runs[0], job));
    else
      print_run(job, runs[0], report);
  }
  const char* left = job.checkpoint.every > 0 ? "; the same command goes on from there"
                                              : "; without checkpoint.every its weights are lost";
  const int code = code_of_end(runs, job.train.steps, left, processes);
  return code == 0 && lost ? 1 : code;
}

int train(const TrainArguments& options, const Job& job, const Processes& processes) {
  bool begun = false;
  try {
    return train(options, job, processes, begun);
  } catch (const IoError& error) {
    if (begun) throw BrokenRun(error.what());
    throw;
  }
}

Job read_job(const TrainArguments& options, const Overrides& overrides) {
  return options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
}

/// How a job that cannot be read would have its processes meet does not matter: reading it again tells why.
RunOptions asked_run(const TrainArguments& options, const Overrides& overrides) {
  try {
    return read_job(options, overrides).run;
  } catch (const Error&) {
    return {};
  }
}

std::unique_ptr<Processes> join(const RunOptions& run) {
  StoreOptions options;
  options.silence = run.silence_s;
  options.gather_limit = run.gather_limit_s;
  options.last_words = [] { Presence::tell_failed(); };
  return join_processes(run.device == "cpu" ? RunsOn::kCpu : RunsOn::kGpu, std::move(options));
}

/// With several processes an error of one ends all: the others would wait for its messages.
int train(const TrainArguments& options, const Overrides& overrides) {
  if (read_launch(environment_variable).num_ranks == 1) end_on_interrupt();
  const std::unique_ptr<Processes> processes = join(asked_run(options, overrides));
  try {
    return train(options, read_job(options, overrides), *processes);
  } catch (const std::exception& error) {
    Presence::tell_failed();
    if (processes->alone()) throw;
    end_run(*processes, error, exit_code_of(error));
  }
  return 1;
}

}  // namespace

std::function<int()> make_train(Flags& flags) {
  const auto options = std::make_shared<TrainArguments>();
  flags.add_option("job", options->job, "job file (YAML); every key of it is also a flag: --train.steps 20");
  flags.add_flag("--json", options->json, "print the summary as JSON");
  flags.add_flag("--dry-run", options->dry_run,
                 "do nothing, and say what would be done: memory by device, simulated time of the whole run");
  allow_overrides(flags);
  return [options, flags] {
    const Overrides overrides = overrides_of(flags);
    return options->dry_run ? dry_run(read_job(*options, overrides), options->json)
                            : train(*options, overrides);
  };
}

}  // namespace hetermoe
