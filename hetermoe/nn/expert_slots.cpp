#include "hetermoe/nn/expert_slots.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace hetermoe {
namespace {

/// In copies what a task of an fp32 product takes to read its weights: 64 rows cost 1.21 times as much a row
/// as 256 (hidden 512, width 1792, one thread, AVX-512, 2026-11-29).
constexpr i64 kWeightsRead = 18;

std::vector<i64> tasks_of(const std::vector<Chunk>& slots, i64 limit) {
  std::vector<i64> tasks;
  for (const Chunk& slot : slots)
    for_each_part(slot.count, limit, [&](i64, i64 count) { tasks.push_back(count + kWeightsRead); });
  return tasks;
}

/// When the last thread ends.
i64 end_of_tasks(std::vector<i64> tasks, i64 num_threads) {
  std::sort(tasks.begin(), tasks.end(), std::greater<>());
  std::priority_queue<i64, std::vector<i64>, std::greater<>> ends;
  for (i64 thread = 0; thread < num_threads; ++thread) ends.push(0);
  i64 last = 0;
  for (const i64 task : tasks) {
    const i64 end = ends.top() + task;
    ends.pop(), ends.push(end);
    last = std::max(last, end);
  }
  return last;
}

}  // namespace

i64 task_limit(const std::vector<Chunk>& slots, i64 most, i64 num_threads) {
  std::vector<i64> tasks = tasks_of(slots, most);
  const bool are_even = num_threads <= 1 || std::ssize(tasks) >= 8 * num_threads;
  i64 best = most, earliest = are_even ? 0 : end_of_tasks(std::move(tasks), num_threads);
  for (i64 eighths = 6; !are_even && eighths >= 2; --eighths) {
    const i64 limit = std::max<i64>(1, most * eighths / 8),
              end = end_of_tasks(tasks_of(slots, limit), num_threads);
    if (end < earliest) best = limit, earliest = end;
  }
  return best;
}

std::vector<Chunk> slots_with_copies(const CopyGroups& groups) {
  std::vector<Chunk> out;
  for (std::size_t slot = 0; slot + 1 < groups.offsets.size(); ++slot) {
    const i64 begin = groups.offsets[slot], count = groups.offsets[slot + 1] - begin;
    if (count > 0) out.push_back({static_cast<i64>(slot), begin, count});
  }
  return out;
}

std::vector<Chunk> trainable_slots_with_copies(const ExpertSlab& slab, const CopyGroups& groups) {
  std::vector<Chunk> out = slots_with_copies(groups);
  std::erase_if(out, [&](const Chunk& chunk) { return chunk.slot >= slab.num_trainable(); });
  return out;
}

void add_biases_(const at::Tensor& copies_CX, const at::Tensor& bias_SX, const Chunk& chunk,
                 const at::Tensor& factor_C) {
  if (!bias_SX.defined()) return;
  const at::Tensor bias = bias_SX[chunk.slot];
  copies_CX.add_(factor_C.defined() ? factor_C.narrow(0, chunk.begin, chunk.count).unsqueeze(1) * bias
                                    : bias);
}

at::Tensor gate_up_biases(const ExpertSlab& slab) {
  return slab.has_biases() ? biases_of(slab.gate_up, 2 * slab.width()) : at::Tensor();
}
at::Tensor down_biases(const ExpertSlab& slab) {
  return slab.has_biases() ? biases_of(slab.down, slab.hidden()) : at::Tensor();
}

at::Tensor gate_up_matrices(const ExpertSlab& slab) { return matrices_of(slab.gate_up, 2 * slab.width()); }
at::Tensor down_matrices(const ExpertSlab& slab) { return matrices_of(slab.down, slab.hidden()); }

void add_bias_to_dweights_(const at::Tensor& dweights_C, const ExpertSlab& slab, const CopyGroups& groups,
                           const at::Tensor& dout_CD) {
  if (!slab.has_biases()) return;
  const at::Tensor biases = down_biases(slab);
  for (const Chunk& slot : slots_with_copies(groups)) {
    const auto part = [&slot](const at::Tensor& x) { return x.narrow(0, slot.begin, slot.count); };
    part(dweights_C).add_(at::mv(part(dout_CD), biases[slot.slot]));
  }
}

void add_bias_gradients(ExpertSlab& slab, const CopyGroups& groups, const at::Tensor& dgate_up_C2F,
                        const at::Tensor& dout_CD, const at::Tensor& weights_C) {
  if (!slab.has_biases()) return;
  const at::Tensor of_gate_up = biases_of(slab.gate_up_grad, 2 * slab.width());
  const at::Tensor of_down = biases_of(slab.down_grad, slab.hidden());
  for (const Chunk& slot : trainable_slots_with_copies(slab, groups)) {
    const auto part = [&slot](const at::Tensor& x) { return x.narrow(0, slot.begin, slot.count); };
    of_gate_up[slot.slot].add_(part(dgate_up_C2F).sum(0, false, weights_C.scalar_type()));
    of_down[slot.slot].add_((part(weights_C).unsqueeze(1) * part(dout_CD)).sum(0));
  }
}

}  // namespace hetermoe
