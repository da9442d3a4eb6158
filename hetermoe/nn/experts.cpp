#include "hetermoe/nn/experts.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

#include "hetermoe/nn/kernels.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {
namespace {

/// Copies [begin, begin + count) of one slot.
struct Chunk {
  i64 slot, begin, count;
  i64 work() const { return count; }
};

/// Rows [first, first + rows) of the gradient of one slot's weight.
struct GradTile {
  enum class Weight { kGateUp, kDown } weight;
  Chunk copies;  ///< all of the slot
  i64 first, rows;
  i64 work() const { return copies.count * rows; }
};

/// Calls f(first, count) for near-equal parts of at most `limit`.
template <class F>
void for_each_part(i64 count, i64 limit, F f) {
  const i64 parts = count / limit + (count % limit > 0 ? 1 : 0);
  for (i64 part = 0; part < parts; ++part) {
    const i64 first = count * part / parts;
    f(first, count * (part + 1) / parts - first);
  }
}

/// The non-empty slots whole.
std::vector<Chunk> slots_with_copies(const CopyGroups& groups) {
  std::vector<Chunk> out;
  for (std::size_t slot = 0; slot + 1 < groups.offsets.size(); ++slot) {
    const i64 begin = groups.offsets[slot], count = groups.offsets[slot + 1] - begin;
    if (count > 0) out.push_back({static_cast<i64>(slot), begin, count});
  }
  return out;
}

/// All copies in chunks whose intermediate results stay in a CPU's cache (other devices: whole slots). The
/// chunks are not small, because each reads the slot's weights once more.
std::vector<Chunk> make_chunks(const ExpertSlab& slab, const CopyGroups& groups) {
  constexpr i64 kCacheBytes = 2 << 20, kFewest = 256;
  const i64 row_bytes = 2 * slab.down.size(2) * static_cast<i64>(slab.down.element_size());
  const i64 limit = slab.down.device().is_cpu() ? std::max(kFewest, kCacheBytes / std::max<i64>(1, row_bytes))
                                                : std::numeric_limits<i64>::max();
  std::vector<Chunk> out;
  for (const Chunk& slot : slots_with_copies(groups)) {
    for_each_part(slot.count, limit, [&](i64 first, i64 count) {
      out.push_back({slot.slot, slot.begin + first, count});
    });
  }
  return out;
}

/// The weight gradients, cut so that threads find equal work even when one expert has most of the copies.
std::vector<GradTile> make_tiles(const ExpertSlab& slab, const CopyGroups& groups) {
  const i64 limit = slab.down.device().is_cpu() ? 512 : std::numeric_limits<i64>::max();
  std::vector<GradTile> out;
  for (const Chunk& slot : slots_with_copies(groups)) {
    for_each_part(slab.gate_up.size(1), limit, [&](i64 first, i64 rows) {
      out.push_back({GradTile::Weight::kGateUp, slot, first, rows});
    });
    for_each_part(slab.down.size(1), limit, [&](i64 first, i64 rows) {
      out.push_back({GradTile::Weight::kDown, slot, first, rows});
    });
  }
  return out;
}

/// Runs all tasks, the largest first, shared out over the threads: each matrix product runs in one thread and
/// waits for nobody. The tasks write to different places, so the result does not depend on the number of
/// threads.
template <class Task, class Run>
void run_tasks(std::vector<Task> tasks, const at::Device& device, const Run& run) {
  const i64 num_threads = device.is_cpu() && !at::in_parallel_region() ? at::get_num_threads() : 1;
  if (num_threads == 1) {
    for (const Task& task : tasks) run(task);
    return;
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.work() > b.work(); });
  std::atomic<std::size_t> next = 0;
  at::parallel_for(0, num_threads, 1, [&](i64, i64) {
    const at::NoGradGuard no_grad;  // thread-local
    for (std::size_t t = next++; t < tasks.size(); t = next++) run(tasks[t]);
  });
}

/// Adds one row per copy into rows, in the order of the copies.
at::Tensor sum_copies(const at::Tensor& copies_CH, const CopyGroups& groups) {
  at::Tensor out = at::zeros({groups.num_rows, copies_CH.size(1)}, copies_CH.options());
  add_rows_(out, groups.row_C, copies_CH);
  return out;
}

}  // namespace

at::Tensor experts_forward(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                           const at::Tensor& weights_C, ExpertsSaved* saved) {
  if (saved != nullptr) {
    saved->gate_up_C2F = at::empty({groups.num_copies(), slab.gate_up.size(1)}, rows_RD.options());
  }
  at::Tensor out_CH = at::empty({groups.num_copies(), slab.down.size(1)}, rows_RD.options());
  run_tasks(make_chunks(slab, groups), rows_RD.device(), [&](const Chunk& chunk) {
    const auto part = [&chunk](const at::Tensor& x) { return x.narrow(0, chunk.begin, chunk.count); };
    const at::Tensor input = gather_rows(rows_RD, part(groups.row_C));
    at::Tensor gate_up = saved != nullptr ? part(saved->gate_up_C2F)
                                          : at::empty({chunk.count, slab.gate_up.size(1)}, rows_RD.options());
    multiply_into(gate_up, input, slab.gate_up[chunk.slot].t());
    // The weight is applied before the down projection: it is linear, and the rows are gone after it.
    const at::Tensor act = swiglu_forward(gate_up, part(weights_C));
    at::Tensor out = part(out_CH);
    multiply_into(out, act, slab.down[chunk.slot].t());
  });
  return sum_copies(out_CH, groups);
}

ExpertsGradient experts_backward(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                                 const at::Tensor& weights_C, ExpertsSaved* saved,
                                 const at::Tensor& dout_RD) {
  const i64 copies = groups.num_copies();
  const at::TensorOptions options = rows_RD.options();
  const at::Tensor input_CD = gather_rows(rows_RD, groups.row_C);
  const at::Tensor dout_CD = gather_rows(dout_RD, groups.row_C);
  // The gradients take the place of gate and up, the activation that of its gradient.
  const at::Tensor gate_up_C2F = saved != nullptr ? std::exchange(saved->gate_up_C2F, {})
                                                  : at::empty({copies, slab.gate_up.size(1)}, options);
  const at::Tensor act_CF = at::empty({copies, slab.down.size(2)}, options);
  const at::Tensor dweights_C = at::empty_like(weights_C);
  const at::Tensor drows_CD = at::empty({copies, rows_RD.size(1)}, options);
  run_tasks(make_chunks(slab, groups), rows_RD.device(), [&](const Chunk& chunk) {
    const auto part = [&chunk](const at::Tensor& x) { return x.narrow(0, chunk.begin, chunk.count); };
    at::Tensor gate_up = part(gate_up_C2F), act = part(act_CF), drows = part(drows_CD);
    if (saved == nullptr) multiply_into(gate_up, part(input_CD), slab.gate_up[chunk.slot].t());
    multiply_into(act, part(dout_CD), slab.down[chunk.slot]);
    SwigluGradient gradient{gate_up, act, part(dweights_C)};
    swiglu_backward_out(gradient, gate_up, part(weights_C), act);
    multiply_into(drows, gate_up, slab.gate_up[chunk.slot]);
  });
  run_tasks(make_tiles(slab, groups), rows_RD.device(), [&](const GradTile& tile) {
    const bool down = tile.weight == GradTile::Weight::kDown;
    const auto part = [&tile](const at::Tensor& x) {
      return x.narrow(0, tile.copies.begin, tile.copies.count);
    };
    const at::Tensor left = part(down ? dout_CD : gate_up_C2F).narrow(1, tile.first, tile.rows);
    const at::Tensor& grad = down ? slab.down_grad : slab.gate_up_grad;
    add_product_(grad[tile.copies.slot].narrow(0, tile.first, tile.rows), left.t(),
                 part(down ? act_CF : input_CD));
  });
  return {sum_copies(drows_CD, groups), dweights_C};
}

}  // namespace hetermoe
