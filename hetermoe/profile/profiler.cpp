#include "hetermoe/profile/profiler.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/comm/processes.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/exec/device_state.h"
#include "hetermoe/exec/threads.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/profile/expert_products.h"
#include "hetermoe/profile/machine.h"
#include "hetermoe/profile/step_times.h"
#include "hetermoe/profile/tasks.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

/// Restores the number of intra-op threads.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~ThreadsGuard() { at::set_num_threads(before_); }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;

 private:
  int before_;
};

std::vector<i64> distinct(const std::vector<i64>& values) {
  const std::set<i64> set(values.begin(), values.end());
  return {set.begin(), set.end()};
}

/// Entries that whole steps gave. An entry that was measured alone takes its time from them where they have
/// one; what is left is theirs alone.
class StepEntries {
 public:
  explicit StepEntries(std::vector<ProfileEntry> entries = {})
      : entries_(std::move(entries)), num_left_(static_cast<i64>(entries_.size())) {}

  i64 num_left() const { return num_left_; }

  void correct(ProfileEntry& alone) {
    if (alone.op == ProfiledOp::kMerge) merges_[alone.rows] = alone.seconds;
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const ProfileEntry& entry) { return is_same(entry, alone); });
    if (found == entries_.end()) return;
    const double peak = alone.peak_bytes, kept = alone.kept_bytes;
    alone = without_merge(*found);
    alone.peak_bytes = peak;
    alone.kept_bytes = kept;
    entries_.erase(found);
    --num_left_;
  }

  /// The entries that steps alone have.
  std::vector<ProfileEntry> take() {
    num_left_ = 0;
    return std::move(entries_);
  }

 private:
  /// States of a step have a few parameters more than the matrix that stands for them.
  static bool is_same(const ProfileEntry& step, const ProfileEntry& alone) {
    if (step.op != alone.op || step.phase != alone.phase) return false;
    const ProfilePoint a = point_of(step), b = point_of(alone);
    const double tolerance = step.op == ProfiledOp::kUpdate ? 0.01 : 0;
    return a.family == b.family && std::abs(a.size - b.size) <= tolerance * b.size;
  }
  /// The head of a step begins with a merge, which has an entry of its own.
  ProfileEntry without_merge(ProfileEntry entry) const {
    const auto merge = merges_.find(entry.tokens);
    if (entry.op != ProfiledOp::kHead || merge == merges_.end()) return entry;
    for (Seconds* seconds : {&entry.seconds, &entry.p10, &entry.p90})
      *seconds = std::max(0.1 * *seconds, *seconds - merge->second);
    return entry;
  }

  std::vector<ProfileEntry> entries_;
  i64 num_left_;
  std::map<i64, Seconds> merges_;
};

/// The first layers, up to the one with experts that has this number, or to the last.
ModelConfig first_layers_with_experts(const ModelConfig& model, i64 num_with_experts) {
  i64 layers = 0;
  for (i64 found = 0; found < num_with_experts && layers < model.num_layers; ++layers)
    found += model.is_moe(layers);
  return first_layers(model, layers);
}

/// Values, gradients, moments and masters of a model.
Bytes state_bytes(const ModelConfig& model, Dtype dtype) {
  return real(count_parameters(model).total) * state_bytes_per_parameter(bytes_of(dtype)).total();
}

/// 0 = not known.
Bytes memory_of(const ProfileOptions& options) {
  const at::Device device = find_device(options.device, "profile device");
  return device.is_cpu() ? real(::sysconf(_SC_PHYS_PAGES)) * real(::sysconf(_SC_PAGESIZE))
                         : gpu_memory(device);
}

/// The model whose whole steps are measured: of two layers with experts, for one layer's data stays in a
/// CPU's caches; of one where two do not fit; none where one does not.
std::optional<ModelConfig> model_of_steps(const ModelConfig& model, const ProfileOptions& options) {
  constexpr double kShare = 0.8;  // the rest is for activations
  const Bytes has = memory_of(options);
  for (const i64 num_with_experts : {2, 1}) {
    ModelConfig out = first_layers_with_experts(model, num_with_experts);
    if (has <= 0 || state_bytes(out, options.dtype) <= kShare * has) return out;
  }
  return std::nullopt;
}

class Profiler {
 public:
  Profiler(const ModelConfig& model, const ProfileOptions& options)
      : model_(model),
        options_(options),
        device_(find_device(options.device, "profile device")),
        tensor_(at::TensorOptions().device(device_).dtype(scalar_type(options.dtype))) {}

  ProfileFile run(const std::function<void(const ProfileEntry&, i64)>& on_entry) {
    check_threads("--threads", options_.threads);
    // As a run computes unless it is asked otherwise.
    if (!device_.is_cpu()) configure_gpus({.tf32 = true, .fp64 = options_.dtype == Dtype::kFp64});
    choose_products();
    plan_groups();
    ProfileFile file = frame();
    StepEntries steps;
    if (const auto model = options_.steps ? model_of_steps(model_, options_) : std::nullopt)
      steps = StepEntries(measure_steps(*model, options_, device_, products_));
    const c10::NoGradGuard no_grad;
    const ThreadsGuard threads(static_cast<int>(options_.threads));
    i64 left = 0;
    for (const Pending& pending : groups_) left += pending.num_entries;
    for (const Pending& pending : groups_) {
      for (ProfileTask& task : pending.make()) {
        const Measurement m = measure(task.task, device_, options_.timing);
        ProfileEntry entry = task.entry;
        entry.seconds = m.median, entry.p10 = m.p10, entry.p90 = m.p90, entry.runs = m.runs;
        entry.peak_bytes = m.peak_bytes, entry.kept_bytes = m.kept_bytes;
        steps.correct(entry);
        file.entries.push_back(entry);
        if (on_entry) on_entry(entry, --left + steps.num_left());
      }
    }
    for (const ProfileEntry& entry : steps.take()) {
      file.entries.push_back(entry);
      if (on_entry) on_entry(entry, steps.num_left());
    }
    return file;
  }

 private:
  struct Pending {
    i64 num_entries;
    std::function<TaskGroup()> make;
  };

  ProfileFile frame() const {
    ProfileFile file;
    file.host = host_name();
    file.device = device_name(device_);
    file.date = utc_date();
    file.torch = torch_version();
    file.compiler = compiler_version();
    file.threads = options_.threads;
    file.dtype = options_.dtype;
    file.model = model_.name;
    file.shape = shape_of(model_);
    file.expert_products = products_;
    return file;
  }

  void add(i64 num_entries, std::function<TaskGroup()> make) {
    groups_.push_back({num_entries, std::move(make)});
  }

  /// On a CPU nothing is to be chosen: one expert after another leaves its threads their caches.
  void choose_products() {
    if (device_.is_cpu()) return;
    const std::vector<i64> rows = sizes("rows_per_expert", options_.rows_per_expert, 0);
    products_ = faster_expert_products(model_, first_layer(true), expert_counts().back(),
                                       rows[rows.size() / 2], tensor_, options_.timing);
  }

  void plan_groups() {
    const std::vector<i64> seq_lens = sizes("seq_lens", options_.seq_lens, model_.max_positions);
    const std::vector<i64> sequences = sizes("sequences", options_.sequences, 0);
    std::vector<i64> tokens;
    for (const i64 s : seq_lens) {
      for (const i64 q : sequences) {
        tokens.push_back(s * q);
        for (const i64 layer : {first_layer(true), first_layer(false)}) {
          if (layer >= 0) add(4, [=, this] { return attention_tasks(model_, layer, s, q, tensor_); });
        }
      }
    }
    for (const i64 t : distinct(tokens)) {
      add(2, [=, this] { return embed_tasks(model_, t, tensor_); });
      add(3, [=, this] { return row_tasks(model_, t, tensor_); });
      add(2, [=, this] { return head_tasks(model_, t, tensor_); });  // after the merge, see StepEntries
    }
    plan_experts();
    plan_updates();
  }

  void plan_experts() {
    const i64 layer = first_layer(true);
    for (const i64 e : expert_counts()) {
      for (const i64 rows : sizes("rows_per_expert", options_.rows_per_expert, 0))
        add(4, [=, this] { return expert_tasks(model_, layer, e, rows, tensor_, products_); });
    }
  }

  /// The optimizer on the states of a run: attention part, head, experts. States of equal size are measured
  /// once.
  void plan_updates() {
    const ParamCounts counts = count_parameters(model_);
    std::set<i64> params = {counts.attention_part[static_cast<std::size_t>(first_layer(true))],
                            counts.embedding};
    for (const i64 e : expert_counts()) params.insert(e * counts.expert);
    for (const i64 p : params) {
      add(1, [=, this] { return update_tasks({at::zeros({p / model_.hidden, model_.hidden}, tensor_)}); });
    }
  }

  i64 first_layer(bool moe) const {
    for (i64 l = 0; l < model_.num_layers; ++l) {
      if (model_.is_moe(l) == moe) return l;
    }
    return -1;
  }

  std::vector<i64> expert_counts() const {
    const i64 all = model_.num_experts;
    if (options_.experts.empty()) return distinct({1, std::max<i64>(1, all / 4), all});
    return sizes("experts", options_.experts, all);
  }

  /// Distinct sizes in ascending order. limit: 0 = none.
  std::vector<i64> sizes(const char* name, const std::vector<i64>& values, i64 limit) const {
    const std::vector<i64> out = distinct(values);
    if (out.empty())
      fail<ConfigError>(fmt::format("profile {}", name), "got no sizes, expected at least one");
    if (out.front() < 1)
      fail<ConfigError>(fmt::format("profile {}", name), "got {}, expected >= 1", out.front());
    if (limit > 0 && out.back() > limit) {
      fail<ConfigError>(fmt::format("profile {}", name), "got {}, expected at most {} as in {}", out.back(),
                        limit, model_.name);
    }
    return out;
  }

  const ModelConfig& model_;
  const ProfileOptions& options_;
  at::Device device_;
  at::TensorOptions tensor_;
  ExpertProducts products_ = ExpertProducts::kAuto;
  std::vector<Pending> groups_;
};

}  // namespace

std::string why_no_steps(const ModelConfig& model, const ProfileOptions& options) {
  if (model_of_steps(model, options)) return "";
  return fmt::format(
      "whole steps are not measured: the first layers of {} with their optimizer take {}, and {} has {}",
      model.name, format_bytes(state_bytes(first_layers_with_experts(model, 1), options.dtype)),
      options.device, format_bytes(memory_of(options)));
}

ProfileFile profile_device(const ModelConfig& model, const ProfileOptions& options,
                           const std::function<void(const ProfileEntry&, i64)>& on_entry) {
  check_trainable(model);
  if (model.num_moe_layers() == 0)
    fail<ConfigError>("profile model",
                      "{} has no experts, whose ops a profile holds: expected a model with some", model.name);
  return Profiler(model, options).run(on_entry);
}

}  // namespace hetermoe
