#include <algorithm>

#include "hetermoe/schedule/waves.h"

// Pipeline order 1F1B over windows of microbatches: stage s of S runs min(S - s, W) windows forward, then
// alternates backward and forward. A stage is a run of layers whose attention shares are equal; the embedding
// belongs to the first stage, the head to the last. Inside a stage a window goes layer by layer, so that its
// microbatches hide each other's exchanges (zebra inside a pipeline).
namespace hetermoe {
namespace {

struct Stage {
  i32 first_layer = 0;
  std::vector<Wave> forward, backward;
};

std::vector<Stage> split_stages(const Placement& placement, i32 group) {
  std::vector<Stage> stages(1);
  std::vector<std::size_t> stage_of;
  for (i32 l = 0; l < placement.num_layers(); ++l) {
    if (l > 0 && placement.moves_into(group, l, 0)) stages.push_back({l, {}, {}});
    stage_of.push_back(stages.size() - 1);
  }
  bool backward = false;
  for (const Wave& wave : make_waves(placement, group)) {
    const bool head = wave.has_compute && wave.compute.kind == OpKind::kHead;
    const i32 layer = wave.has_compute && !head ? wave.compute.layer : wave.layer;
    Stage& stage = head ? stages.back() : stages[stage_of[static_cast<std::size_t>(layer)]];
    (backward ? stage.backward : stage.forward).push_back(wave);
    backward = backward || head;
  }
  // A stage sends its output when it is done, not when the next stage is due.
  for (std::size_t s = 1; s < stages.size(); ++s) stages[s].forward.front().sends_input = false;
  return stages;
}

class OneFOneB {
 public:
  OneFOneB(ScheduleBuilder& builder, i32 group)
      : runner_(builder, group),
        stages_(split_stages(builder.placement(), group)),
        num_microbatches_(builder.placement().num_microbatches(group)),
        window_(std::clamp(builder.placement().plan().window, 1, num_microbatches_)),
        num_windows_((num_microbatches_ + window_ - 1) / window_),
        backward_(builder.placement().options().backward),
        forward_done_(stages_.size(), 0),
        backward_done_(stages_.size(), 0) {}

  /// Appends the next window of every stage that can go on. False when all is appended.
  bool advance() {
    bool more = false;
    for (std::size_t s = 0; s < stages_.size(); ++s) more = advance(s) || more;
    return more;
  }

 private:
  bool advance(std::size_t s) {
    const i32 warm_up = std::min(static_cast<i32>(stages_.size() - s), num_windows_);
    const bool forward_next =
        forward_done_[s] < num_windows_ && (!backward_ || forward_done_[s] < warm_up + backward_done_[s]);
    if (forward_next) {
      if (s > 0 && forward_done_[s - 1] <= forward_done_[s]) return false;
      const i32 w = forward_done_[s]++;
      run(stages_[s].forward, w);
      for (i32 m = first(w); s + 1 < stages_.size() && m < last(w); ++m)
        runner_.send_input(stages_[s + 1].first_layer, m);
      return true;
    }
    if (!backward_ || backward_done_[s] >= num_windows_) return false;
    if (s + 1 < stages_.size() && backward_done_[s + 1] <= backward_done_[s]) return false;
    run(stages_[s].backward, backward_done_[s]++);
    if (backward_done_[s] == num_windows_) report_done(stages_[s]);
    return true;
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

  WaveRunner runner_;
  std::vector<Stage> stages_;
  i32 num_microbatches_, window_, num_windows_;
  bool backward_;
  std::vector<i32> forward_done_, backward_done_;  // [stage] windows appended
};

}  // namespace

void order_one_f_one_b(ScheduleBuilder& builder) {
  std::vector<OneFOneB> groups;
  for (i32 g = 0; g < builder.placement().num_groups(); ++g) {
    if (builder.lists_group(g)) groups.emplace_back(builder, g);
  }
  for (bool more = true; more;) {
    more = false;
    for (OneFOneB& group : groups) more = group.advance() || more;
  }
}

}  // namespace hetermoe
