#include <algorithm>
#include <deque>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/schedule/waves.h"

// Pipeline order 1F1B over windows of microbatches, interleaved where devices have several stages:
// plan/pipeline_tasks. The embedding belongs to the first stage, the head to the last. Inside a stage a
// window goes layer by layer, so that its microbatches hide each other's exchanges (zebra inside a pipeline).
namespace hetermoe {
namespace {

struct Stage {
  i32 first_layer = 0;
  std::vector<Wave> forward, backward;
};

/// What a rank does at a time.
struct Event {
  enum What { kSends, kComputes };  // in this order where they are due at the same time
  double time = 0;
  What what;
  PipelineTask task;
  std::size_t group;  ///< of those that are appended
};

std::vector<Stage> split_stages(const Placement& placement, i32 group, const PipelineStages& borders) {
  std::vector<Stage> stages;
  for (const i32 first : borders.first_layer) stages.push_back({first, {}, {}});
  const auto stage_of = [&](i32 layer) -> Stage& {
    const auto next = std::upper_bound(borders.first_layer.begin(), borders.first_layer.end(), layer);
    return stages[static_cast<std::size_t>(next - borders.first_layer.begin()) - 1];
  };
  bool backward = false;
  for (const Wave& wave : make_waves(placement, group)) {
    const bool head = wave.has_compute && wave.compute.kind == OpKind::kHead;
    const i32 layer = wave.has_compute && !head ? wave.compute.layer : wave.layer;
    Stage& stage = head ? stages.back() : stage_of(layer);
    (backward ? stage.backward : stage.forward).push_back(wave);
    backward = backward || head;
  }
  // A stage sends its output when it is done, not when the next stage is due.
  for (std::size_t s = 1; s < stages.size(); ++s) stages[s].forward.front().sends_input = false;
  if (borders.chunks() == 1) return stages;
  for (Stage& stage : stages)
    for (Wave& wave : stage.backward) wave.sends_gradient = false;
  return stages;
}

class OneFOneB {
 public:
  OneFOneB(ScheduleBuilder& builder, i32 group)
      : runner_(builder, group),
        borders_(pipeline_stages(builder.placement().plan().groups[idx(group)])),
        stages_(split_stages(builder.placement(), group, borders_)),
        num_layers_(builder.placement().num_layers()),
        num_microbatches_(builder.placement().num_microbatches(group)),
        window_(std::clamp(builder.placement().plan().window, 1, num_microbatches_)),
        num_windows_((num_microbatches_ + window_ - 1) / window_),
        backward_length_(keeps_activations(builder.placement().recompute(group, 0)) ? 2 : 3),
        forward_end_(stages_.size(), std::vector<double>(idx(num_windows_), kNever)),
        backward_end_(forward_end_),
        left_(stages_.size(), num_windows_) {
    for (i32 rank = 0; rank < borders_.ranks; ++rank) {
      const std::vector<PipelineTask> tasks =
          tasks_of_rank(borders_, rank, num_windows_, builder.placement().options().backward);
      tasks_.emplace_back(tasks.begin(), tasks.end());
    }
  }

  bool is_interleaved() const { return borders_.chunks() > 1; }

  /// Appends the next task of every rank that can go on. False when all is appended.
  bool advance() {
    bool more = false;
    for (std::deque<PipelineTask>& tasks : tasks_) {
      if (tasks.empty()) continue;
      more = true;
      if (!is_ready(tasks.front())) continue;
      const PipelineTask task = tasks.front();
      tasks.pop_front();
      end_of(task) = 1;
      compute(task);
      send(task);
    }
    return more;
  }

  /// What is done when, if a layer takes one unit forward and two backward, three where it recomputes.
  std::vector<Event> events(std::size_t number) {
    std::vector<Event> events;
    std::vector<double> free(tasks_.size(), 0);  // [rank]
    while (true) {
      std::size_t rank = tasks_.size();
      std::deque<PipelineTask>::iterator next;
      const auto look_at = [&](std::size_t r, std::deque<PipelineTask>::iterator at) {
        if (!is_ready(*at)) return;
        if (rank < tasks_.size() && std::max(free[r], ready_at(*at)) >= std::max(free[rank], ready_at(*next)))
          return;
        rank = r, next = at;
      };
      for (std::size_t r = 0; r < tasks_.size(); ++r)
        if (!tasks_[r].empty()) look_at(r, tasks_[r].begin());
      // Groups of windows that are not full may make ranks wait for each other; then one goes out of turn.
      for (std::size_t r = 0; r < tasks_.size() && rank == tasks_.size(); ++r)
        for (auto at = tasks_[r].begin(); at != tasks_[r].end(); ++at) look_at(r, at);
      if (rank == tasks_.size()) return events;
      const PipelineTask task = *next;
      tasks_[rank].erase(next);
      const double begin = std::max(free[rank], ready_at(task));
      free[rank] = end_of(task) = begin + length_of(task);
      events.push_back({begin, Event::kComputes, task, number});
      events.push_back({free[rank], Event::kSends, task, number});
    }
  }

  void run(const Event& event) { event.what == Event::kComputes ? compute(event.task) : send(event.task); }

 private:
  double& end_of(const PipelineTask& task) {
    return (task.forward ? forward_end_ : backward_end_)[idx(task.stage)][idx(task.window)];
  }
  /// When what the task starts from is there; 0 = its device may begin.
  double ready_at(const PipelineTask& task) const {
    const std::size_t s = idx(task.stage), w = idx(task.window);
    if (task.forward) return s == 0 ? kStart : forward_end_[s - 1][w];
    return s + 1 < stages_.size() ? backward_end_[s + 1][w] : forward_end_[s][w];
  }
  bool is_ready(const PipelineTask& task) const { return ready_at(task) != kNever; }

  double length_of(const PipelineTask& task) const {
    const i32 next =
        task.stage + 1 < borders_.size() ? borders_.first_layer[idx(task.stage) + 1] : num_layers_;
    const i32 layers = next - borders_.first_layer[idx(task.stage)];
    return layers * (task.forward ? 1 : backward_length_);
  }

  void compute(const PipelineTask& task) {
    const Stage& stage = stages_[idx(task.stage)];
    run(task.forward ? stage.forward : stage.backward, task.window);
    if (!task.forward && --left_[idx(task.stage)] == 0) report_done(stage);
  }

  /// On to the next stage, or back to the one before.
  void send(const PipelineTask& task) {
    const std::size_t s = idx(task.stage);
    for (i32 m = first(task.window); m < last(task.window); ++m) {
      if (task.forward && s + 1 < stages_.size()) runner_.send_input(stages_[s + 1].first_layer, m);
      if (!task.forward && is_interleaved()) runner_.send_gradient(stages_[s].first_layer, m);
    }
  }

  i32 first(i32 w) const { return w * window_; }
  i32 last(i32 w) const { return std::min(first(w + 1), num_microbatches_); }

  void run(const std::vector<Wave>& waves, i32 w) {
    for (const Wave& wave : waves) runner_.run(wave, first(w), last(w));
    runner_.finish_returns();
  }

  void report_done(const Stage& stage) {
    for (const Wave& wave : stage.forward) runner_.report_done(wave);
    for (const Wave& wave : stage.backward) runner_.report_done(wave);
  }

  static constexpr double kNever = -1, kStart = 0;
  WaveRunner runner_;
  PipelineStages borders_;
  std::vector<Stage> stages_;
  i32 num_layers_, num_microbatches_, window_, num_windows_;
  double backward_length_;
  std::vector<std::vector<double>> forward_end_, backward_end_;  // [stage][window] kNever = not appended
  std::vector<i32> left_;                                        // [stage] windows that have to come back
  std::vector<std::deque<PipelineTask>> tasks_;                  // [rank] not appended
};

/// Interleaved, a rank sends while it receives, so all is appended in the order of time.
void append_one_f_one_b(ScheduleBuilder& builder) {
  std::vector<OneFOneB> groups;
  bool interleaved = false;
  for (i32 g = 0; g < builder.placement().num_groups(); ++g) {
    if (!builder.lists_group(g)) continue;
    groups.emplace_back(builder, g);
    interleaved = interleaved || groups.back().is_interleaved();
  }
  std::vector<Event> events;
  for (std::size_t g = 0; g < groups.size() && interleaved; ++g) {
    const std::vector<Event> of_group = groups[g].events(g);
    events.insert(events.end(), of_group.begin(), of_group.end());
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.time, a.what) < std::pair(b.time, b.what);
  });
  for (const Event& event : events) groups[event.group].run(event);
  for (bool more = !interleaved; more;) {
    more = false;
    for (OneFOneB& group : groups) more = group.advance() || more;
  }
}

/// In windows: of a pipeline's last stage one, of the stage before it two.
InFlight in_stages(const Plan& plan, const Group& group) {
  const i64 count = static_cast<i64>(group.microbatches.size()), window = std::max<i64>(1, plan.window);
  const i64 windows = (count + window - 1) / window;
  return [=, stages = pipeline_stages(group)](std::size_t layer, DeviceId /*device*/) {
    const std::vector<i32>& borders = stages.first_layer;
    const auto next = std::upper_bound(borders.begin(), borders.end(), static_cast<i32>(layer));
    const i32 stage = static_cast<i32>(next - borders.begin()) - 1;
    return std::min(count, window * windows_in_flight(stages, stage, static_cast<i32>(windows)));
  };
}

}  // namespace

OrderPolicyTraits order_rows::one_f_one_b_order() {
  return {.policy = OrderPolicy::kOneFOneB,
          .append = append_one_f_one_b,
          .appends_end_of_step = false,
          .treats_equals_alike = true,
          .has_window = true,
          .zero_window_is_all = false,
          .windows_in_sequence = false,
          .has_stages = true,
          .has_rounds = false,
          .in_flight = in_stages,
          .plan_name = "pipeline"};
}

}  // namespace hetermoe
