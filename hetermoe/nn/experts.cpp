#include "hetermoe/nn/experts.h"

#include <algorithm>
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

}  // namespace

at::Tensor experts_forward(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                           const at::Tensor& weights_C, ExpertsSaved* saved) {
  at::Tensor out = at::zeros({groups.num_rows, slab.down.size(1)}, rows_RD.options());
  if (saved != nullptr) {
    saved->gate_up_C2F = at::empty({groups.num_copies(), slab.gate_up.size(1)}, rows_RD.options());
  }
  for (const Chunk& chunk : make_chunks(slab, groups)) {
    const at::Tensor index = groups.row_C.narrow(0, chunk.begin, chunk.count);
    const at::Tensor input = gather_rows(rows_RD, index);
    at::Tensor gate_up = saved != nullptr ? saved->gate_up_C2F.narrow(0, chunk.begin, chunk.count)
                                          : at::empty({chunk.count, slab.gate_up.size(1)}, rows_RD.options());
    at::mm_out(gate_up, input, slab.gate_up[chunk.slot].t());
    // The weight is applied before the down projection: it is linear, and the rows are gone after it.
    const at::Tensor act = swiglu_forward(gate_up, weights_C.narrow(0, chunk.begin, chunk.count));
    add_rows_(out, index, at::mm(act, slab.down[chunk.slot].t()));
  }
  return out;
}

ExpertsGradient experts_backward(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                                 const at::Tensor& weights_C, const ExpertsSaved* saved,
                                 const at::Tensor& dout_RD) {
  ExpertsGradient out{at::zeros_like(rows_RD), at::empty_like(weights_C)};
  for (const Chunk& chunk : make_chunks(slab, groups)) {
    const auto part = [&chunk](const at::Tensor& x) { return x.narrow(0, chunk.begin, chunk.count); };
    const at::Tensor index = part(groups.row_C);
    const at::Tensor input = gather_rows(rows_RD, index);
    const at::Tensor gate_up =
        saved != nullptr ? part(saved->gate_up_C2F) : at::mm(input, slab.gate_up[chunk.slot].t());
    const at::Tensor dout = gather_rows(dout_RD, index);
    const at::Tensor dact = at::mm(dout, slab.down[chunk.slot]);
    const SwigluGradient grad = swiglu_backward(gate_up, part(weights_C), dact, RecomputeAct::kYes);
    part(out.dweights_C).copy_(grad.dweights_C);
    slab.down_grad[chunk.slot].addmm_(dout.t(), grad.act_CF);
    slab.gate_up_grad[chunk.slot].addmm_(grad.dgate_up_C2F.t(), input);
    add_rows_(out.drows_RD, index, at::mm(grad.dgate_up_C2F, slab.gate_up[chunk.slot]));
  }
  return out;
}

}  // namespace hetermoe
