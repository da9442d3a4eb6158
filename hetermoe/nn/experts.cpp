#include "hetermoe/nn/experts.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "hetermoe/nn/kernels.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {
namespace {

/// Copies [begin, begin + count) of one slot.
struct Chunk {
  i64 slot, begin, count;
};

/// All copies, slot by slot, in chunks whose intermediate results stay in a CPU's cache (other devices: whole
/// slots). The chunks are not small, because each reads the slot's weights once more.
std::vector<Chunk> make_chunks(const ExpertSlab& slab, const CopyGroups& groups) {
  constexpr i64 kCacheBytes = 2 << 20, kFewest = 256;
  const i64 row_bytes = 2 * slab.down.size(2) * static_cast<i64>(slab.down.element_size());
  const i64 limit = slab.down.device().is_cpu() ? std::max(kFewest, kCacheBytes / std::max<i64>(1, row_bytes))
                                                : std::numeric_limits<i64>::max();
  std::vector<Chunk> out;
  for (std::size_t slot = 0; slot + 1 < groups.offsets.size(); ++slot) {
    const i64 begin = groups.offsets[slot], count = groups.offsets[slot + 1] - begin;
    const i64 parts = count / limit + (count % limit > 0 ? 1 : 0);
    for (i64 part = 0; part < parts; ++part) {
      const i64 first = count * part / parts, last = count * (part + 1) / parts;
      out.push_back({static_cast<i64>(slot), begin + first, last - first});
    }
  }
  return out;
}

/// Runs `work` on every chunk. The experts are shared out over the threads, largest first, so that each
/// matrix product runs in one thread without waiting for others; the chunks of an expert stay in order,
/// because they add to the same gradients. So the result does not depend on the number of threads.
template <class Work>
void for_each_chunk(const std::vector<Chunk>& chunks, const at::Device& device, const Work& work) {
  const i64 num_threads = device.is_cpu() && !at::in_parallel_region() ? at::get_num_threads() : 1;
  if (num_threads == 1) {
    for (const Chunk& chunk : chunks) work(chunk);
    return;
  }
  struct Expert {
    std::size_t begin, end;  // of its chunks
    i64 copies;
  };
  std::vector<Expert> experts;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    if (c == 0 || chunks[c].slot != chunks[c - 1].slot) experts.push_back({c, c, 0});
    experts.back().end = c + 1;
    experts.back().copies += chunks[c].count;
  }
  std::stable_sort(experts.begin(), experts.end(),
                   [](const Expert& a, const Expert& b) { return a.copies > b.copies; });
  std::atomic<std::size_t> next = 0;
  at::parallel_for(0, num_threads, 1, [&](i64, i64) {
    const at::NoGradGuard no_grad;  // thread-local
    for (std::size_t e = next++; e < experts.size(); e = next++) {
      for (std::size_t c = experts[e].begin; c < experts[e].end; ++c) work(chunks[c]);
    }
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
  for_each_chunk(make_chunks(slab, groups), rows_RD.device(), [&](const Chunk& chunk) {
    const auto part = [&chunk](const at::Tensor& x) { return x.narrow(0, chunk.begin, chunk.count); };
    const at::Tensor input = gather_rows(rows_RD, part(groups.row_C));
    at::Tensor gate_up = saved != nullptr ? part(saved->gate_up_C2F)
                                          : at::empty({chunk.count, slab.gate_up.size(1)}, rows_RD.options());
    at::mm_out(gate_up, input, slab.gate_up[chunk.slot].t());
    // The weight is applied before the down projection: it is linear, and the rows are gone after it.
    const at::Tensor act = swiglu_forward(gate_up, part(weights_C));
    at::Tensor out = part(out_CH);
    at::mm_out(out, act, slab.down[chunk.slot].t());
  });
  return sum_copies(out_CH, groups);
}

ExpertsGradient experts_backward(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                                 const at::Tensor& weights_C, const ExpertsSaved* saved,
                                 const at::Tensor& dout_RD) {
  const at::Tensor dweights_C = at::empty_like(weights_C);
  const at::Tensor drows_CH = at::empty({groups.num_copies(), rows_RD.size(1)}, rows_RD.options());
  for_each_chunk(make_chunks(slab, groups), rows_RD.device(), [&](const Chunk& chunk) {
    const auto part = [&chunk](const at::Tensor& x) { return x.narrow(0, chunk.begin, chunk.count); };
    const at::Tensor index = part(groups.row_C);
    const at::Tensor input = gather_rows(rows_RD, index);
    const at::Tensor gate_up =
        saved != nullptr ? part(saved->gate_up_C2F) : at::mm(input, slab.gate_up[chunk.slot].t());
    const at::Tensor dout = gather_rows(dout_RD, index);
    const at::Tensor dact = at::mm(dout, slab.down[chunk.slot]);
    const SwigluGradient grad = swiglu_backward(gate_up, part(weights_C), dact, RecomputeAct::kYes);
    part(dweights_C).copy_(grad.dweights_C);
    slab.down_grad[chunk.slot].addmm_(dout.t(), grad.act_CF);
    slab.gate_up_grad[chunk.slot].addmm_(grad.dgate_up_C2F.t(), input);
    at::Tensor drows = part(drows_CH);
    at::mm_out(drows, grad.dgate_up_C2F, slab.gate_up[chunk.slot]);
  });
  return {sum_copies(drows_CH, groups), dweights_C};
}

}  // namespace hetermoe
