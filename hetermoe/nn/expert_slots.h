#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/routing.h"

// The slots of a slab that have copies, their matrices and their biases. Letters as in experts.h.
namespace hetermoe {

/// Copies [begin, begin + count) of one slot.
struct Chunk {
  i64 slot, begin, count;
  i64 work() const { return count; }
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
std::vector<Chunk> slots_with_copies(const CopyGroups& groups);
/// Those that have gradients.
std::vector<Chunk> trainable_slots_with_copies(const ExpertSlab& slab, const CopyGroups& groups);

/// Of how many copies a task has at most: up to `most`, and fewer where threads, each of which takes the
/// largest task that is left, then end earlier. Every task reads the weights of its slot once more.
i64 task_limit(const std::vector<Chunk>& slots, i64 most, i64 num_threads);

at::Tensor gate_up_matrices(const ExpertSlab& slab);
at::Tensor down_matrices(const ExpertSlab& slab);
/// Undefined = the experts have none.
at::Tensor gate_up_biases(const ExpertSlab& slab);
at::Tensor down_biases(const ExpertSlab& slab);

/// copies[c] += (factor[c] *) the bias of c's slot. bias_SX undefined = there are none.
void add_biases_(const at::Tensor& copies_CX, const at::Tensor& bias_SX, const Chunk& chunk,
                 const at::Tensor& factor_C = {});
/// dweights[c] += dout[c] . bias of c's slot: what a weight gets by the bias behind it.
void add_bias_to_dweights_(const at::Tensor& dweights_C, const ExpertSlab& slab, const CopyGroups& groups,
                           const at::Tensor& dout_CD);
/// Adds the gradients of the biases of trainable slots.
void add_bias_gradients(ExpertSlab& slab, const CopyGroups& groups, const at::Tensor& dgate_up_C2F,
                        const at::Tensor& dout_CD, const at::Tensor& weights_C);

}  // namespace hetermoe
