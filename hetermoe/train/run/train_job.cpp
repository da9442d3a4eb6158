#include "hetermoe/train/run/train_job.h"

#include <algorithm>
#include <exception>
#include <filesystem>

#include "hetermoe/base/version.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/schedule/schedule.h"
#include "hetermoe/train/job/clock_choice.h"
#include "hetermoe/train/job/host_memory.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/train/job/router_training.h"
#include "hetermoe/train/job/slow_team.h"
#include "hetermoe/train/job/usual_choices.h"
#include "hetermoe/train/run/trainer.h"

namespace hetermoe {
namespace {

/// The strategy that made the plan which runs: a plan of a file may be another's than that of the job's
/// strategy. Files are named so, too.
std::string name_of_run(const Job& job, const Plan& plan, std::size_t num_runs) {
  const bool of_file = !job.plan.file.empty() || !job.train.changes.empty();
  std::string name =
      of_file && num_runs == 1 && !plan.strategy.empty() ? plan.strategy : find_strategy(job.strategy).name;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// How rows travel that have scales; empty = none has.
std::string rows_note(const Plan& plan) {
  const bool forward = has_scales(plan.wire_forward), backward = has_scales(plan.wire_backward);
  if (!forward && !backward) return "";
  const Wire wire = forward ? plan.wire_forward : plan.wire_backward;
  const char* what = !backward  ? "rows of experts"
                     : !forward ? "gradients of rows of experts"
                                : "rows of experts and their gradients";
  const bool differ = forward && backward && plan.wire_forward != plan.wire_backward;
  return fmt::format("{} travel in {}{}, rows between other parts in {} (docs/precision.md)", what,
                     name_of(wire), differ ? fmt::format(" and {}", name_of(plan.wire_backward)) : "",
                     name_of(without_scales(wire)));
}

/// How gradients travel in fewer bits than they are kept in; empty = they do not.
std::string sums_note(const Plan& plan) {
  if (plan.wire_reduce == WireReduce::kFp32) return "";
  return fmt::format("gradients travel in {} to the device that sums them{} (docs/precision.md)",
                     name_of(plan.wire_reduce),
                     plan.error_feedback ? ", which keeps what rounding takes for the next step" : "");
}

/// That the devices which this run emulates could not hold its plan; empty = they could.
std::string room_note(const Job& job, const Cluster& cluster, const Trainer& trainer) {
  const std::string overfilled = job.run.device == "cpu" ? trainer.overfilled() : "";
  if (overfilled.empty()) return "";
  return fmt::format(
      "the plan does not fit cluster {}: {}. This run goes on, because its devices are emulated; `{} plan` "
      "finds a plan that fits, or says what would",
      cluster.name, overfilled, program());
}

/// The runs of a job, one for each strategy, and the files that they write while they go on.
class JobRuns {
 public:
  JobRuns(const Job& job, const std::vector<std::string>& strategies, const JobRunOptions& options,
          const OnStep& on_step, const Processes& processes)
      : job_(job),
        options_(options),
        on_step_(on_step),
        processes_(processes),
        model_(options.model ? *options.model : load_model(job.model)),
        cluster_(load_cluster(job.cluster)),
        files_(job, model_, cluster_, runs_) {
    std::exception_ptr first_fault;
    std::vector<std::string> left_out;
    // All plans first: a strategy that cannot run is known before hours are spent on another.
    for (const std::string& strategy : strategies) {
      try {
        add(job_of_strategy(job, strategy, strategies, cluster_), strategies.size());
      } catch (const Error& error) {
        // What is wrong with a key of the plan was meant for all of them.
        if (strategies.size() == 1 || std::string_view(error.what()).starts_with("[plan.")) throw;
        if (!first_fault) first_fault = std::current_exception();
        left_out.push_back(fmt::format("{} does not run: {}", strategy, error.what()));
      }
    }
    if (runs_.empty()) std::rethrow_exception(first_fault);
    for (const std::string& text : left_out)
      if (options_.on_left_out) options_.on_left_out(text);
  }

  std::vector<StrategyRun> run() {
    if (processes_.alone() && job_.run.device == "cpu") check_host_memory(job_, model_);
    HM_CHECK(!job_.train.epochs, "with_steps() was not asked");
    learning_rate_of(job_.train);  // what does not fit is refused before hours are spent
    const Dataset data = options_.data ? *options_.data : load_job_data(job_);
    check_vocabulary(data, model_);
    if (options_.hooks.on_note) tell_of(data);
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!stop_requested)
        run_one(i, data);
      else if (options_.execute)
        runs_[i].outcome.stopped_by = stop_asked();
    }
    return std::move(runs_);
  }

 private:
  void add(Job job, std::size_t num_strategies) {
    StrategyRun run;
    run.plan = make_job_plan(job, model_, cluster_);
    run.strategy = name_of_run(job, run.plan, num_strategies);
    if (num_strategies > 1)
      build_schedule(run.plan, model_, step_options(job, model_));  // which may refuse it
    jobs_.push_back(std::move(job));
    runs_.push_back(std::move(run));
  }

  void tell_of(const Dataset& data) const {
    const auto& tell = options_.hooks.on_note;
    if (const std::string taken = taken_by_default(job_); !taken.empty()) tell(taken);
    tell(training_line(job_, model_, data));
    for (const std::string& note : usual_notes(job_, model_)) tell(note);
    for (const std::string& note : idle_keys_notes(job_)) tell(note);
    for (const std::string& note : {other_devices_note(runs_[0].plan, cluster_),
                                    row_nodes_note(runs_[0].plan, cluster_), both_roles_note(job_, cluster_)})
      if (!note.empty()) tell(note);
    const Plan priced = emulated_plan(job_, runs_[0].plan);
    if (const std::string note = slow_team_note(
            priced, model_, cluster_, *make_cost(model_, cluster_, priced, load_profiles(cluster_)));
        !note.empty())
      tell("warning: " + note);
    if (const std::string note = balance_note(job_, model_); !note.empty()) tell(note);
    if (const std::string note = clock_note(job_, cluster_); !note.empty()) tell(note);
    for (const std::string& note : conversation_notes(data)) tell(note);
  }

  void run_one(std::size_t i, const Dataset& data) {
    StrategyRun& run = runs_[i];
    Trainer trainer(jobs_[i], model_, cluster_, run.plan, data, processes_, options_.checkpoints);
    run.predicted = trainer.predict();
    if (!options_.execute) return;
    for (const std::string& note :
         {rows_note(run.plan), sums_note(run.plan), room_note(jobs_[i], cluster_, trainer)})
      if (options_.hooks.on_note && !note.empty()) options_.hooks.on_note(note);
    if (options_.end_after > 0) trainer.end_after(options_.end_after);
    if (!options_.mark.empty()) trainer.mark_first(options_.mark);
    run.outcome = trainer.run(hooks_of(i, trainer), options_.timed_steps);
    keep_up(i, trainer);
  }

  RunHooks hooks_of(std::size_t i, const Trainer& trainer) {
    RunHooks hooks = options_.hooks;
    hooks.on_step = [this, i](const StepRecord& record) {
      if (processes_.rank() == 0) files_.add(runs_[i], record);
      if (on_step_) on_step_(runs_[i].strategy, record);
    };
    hooks.wants_picture = [this] { return files_.wants_picture(); };
    hooks.on_picture = [this, i, &trainer](const StepPicture& picture) {
      if (processes_.rank() != 0) return;
      keep_up(i, trainer);
      files_.add_picture(runs_[i], picture);
    };
    return hooks;
  }

  /// What was executed last is drawn beside the prediction for the same plan, and has its name.
  void keep_up(std::size_t i, const Trainer& trainer) {
    StrategyRun& run = runs_[i];
    if (to_json(trainer.plan()) == to_json(run.plan)) return;
    run.plan = trainer.plan();
    run.strategy = name_of_run(jobs_[i], run.plan, runs_.size());
    run.predicted = trainer.predict();
  }

  const Job& job_;
  const JobRunOptions& options_;
  const OnStep& on_step_;
  const Processes& processes_;
  const ModelConfig model_;
  const Cluster cluster_;
  std::vector<Job> jobs_;
  std::vector<StrategyRun> runs_;
  RunFiles files_;
};

}  // namespace

std::vector<StrategyRun> run_job(const Job& job, const std::vector<std::string>& strategies,
                                 const JobRunOptions& options, const OnStep& on_step,
                                 const Processes& processes) {
  return JobRuns(job, strategies, options, on_step, processes).run();
}

TrainedJob train_job(const Job& job, const JobRunOptions& options, const OnStep& on_step,
                     const Processes& processes) {
  if (processes.rank() == 0) forget_growth(job);
  return {run_job(job, {job.strategy}, options, on_step, processes),
          options.model ? *options.model : load_model(job.model), job.cluster};
}

}  // namespace hetermoe
