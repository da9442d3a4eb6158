#include "hetermoe/nn/experts.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/nn/expert_slots.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/nn/swiglu.h"

namespace hetermoe {
namespace {

/// Rows [first, first + rows) of the gradient of one slot's weight.
struct GradTile {
  enum class Weight { kGateUp, kDown } weight;
  Chunk copies;  ///< all of the slot
  i64 first, rows;
  i64 work() const { return copies.count * rows; }
};

/// All copies in chunks whose intermediate results stay in a CPU's cache (other devices: whole slots). The
/// chunks are not small, because each reads the slot's weights once more.
std::vector<Chunk> make_chunks(const ExpertSlab& slab, const CopyGroups& groups) {
  constexpr i64 kCacheBytes = 2 << 20, kFewest = 256;
  const i64 row_bytes = 2 * slab.down.size(2) * static_cast<i64>(slab.down.element_size());
  i64 limit = slab.down.device().is_cpu() ? std::max(kFewest, kCacheBytes / std::max<i64>(1, row_bytes))
                                          : std::numeric_limits<i64>::max();
  // These products are so fast that reading the weights counts for more; chunks change no bit there.
  if (has_own_products(slab.down))
    limit = std::clamp<i64>(groups.num_copies() / at::get_num_threads(), kFewest / 2, 4 * kFewest);
  const std::vector<Chunk> slots = slots_with_copies(groups);
  // In fp32 a row has the same bits whatever rows are beside it. Weights of 16 bits are converted for each
  // chunk.
  if (slab.down.device().is_cpu() && slab.down.scalar_type() == at::kFloat)
    limit = task_limit(slots, limit, at::in_parallel_region() ? 1 : at::get_num_threads());
  std::vector<Chunk> out;
  for (const Chunk& slot : slots) {
    for_each_part(slot.count, limit, [&](i64 first, i64 count) {
      out.push_back({slot.slot, slot.begin + first, count});
    });
  }
  return out;
}

/// The weight gradients, cut so that threads find equal work even when one expert has most of the copies.
std::vector<GradTile> make_tiles(const ExpertSlab& slab, const CopyGroups& groups) {
  i64 limit = slab.down.device().is_cpu() ? 512 : std::numeric_limits<i64>::max();
  const std::vector<Chunk> slots = trainable_slots_with_copies(slab, groups);
  if (has_own_products(slab.down)) {  // as in make_chunks: each tile reads the copies once more
    const i64 rows = static_cast<i64>(slots.size()) * (2 * slab.width() + slab.hidden());
    limit = std::clamp<i64>(rows / (4 * at::get_num_threads()), 256, 4096);
  }
  std::vector<GradTile> out;
  for (const Chunk& slot : slots) {
    for_each_part(2 * slab.width(), limit, [&](i64 first, i64 rows) {
      out.push_back({GradTile::Weight::kGateUp, slot, first, rows});
    });
    for_each_part(slab.hidden(), limit, [&](i64 first, i64 rows) {
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
    const c10::NoGradGuard no_grad;  // thread-local
    for (std::size_t t = next++; t < tasks.size(); t = next++) run(tasks[t]);
  });
}

/// Adds one row per copy into rows, in the order of the copies.
at::Tensor sum_copies(const at::Tensor& copies_CH, const CopyGroups& groups, const at::Tensor& row_C) {
  if (runs_on_kernels(copies_CH)) {
    return gpu_sum_rows(copies_CH, groups.by_row_C.defined()
                                       ? KeyOrder{groups.by_row_C, groups.begin_of_row_R1}
                                       : order_by_key(row_C, groups.num_rows));
  }
  at::Tensor out = at::zeros({groups.num_rows, copies_CH.size(1)}, copies_CH.options());
  add_rows_(out, row_C, copies_CH);
  return out;
}

// ---- one expert after another ----

at::Tensor forward_each(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                        const at::Tensor& row_C, const at::Tensor& weights_C, ExpertsSaved* saved) {
  if (saved != nullptr) {
    saved->gate_up_C2F = at::empty({groups.num_copies(), 2 * slab.width()}, rows_RD.options());
  }
  at::Tensor out_CH = at::empty({groups.num_copies(), slab.hidden()}, rows_RD.options());
  const at::Tensor gate_ups = gate_up_matrices(slab), downs = down_matrices(slab);
  const at::Tensor gate_up_bias = gate_up_biases(slab), down_bias = down_biases(slab);
  run_tasks(make_chunks(slab, groups), rows_RD.device(), [&](const Chunk& chunk) {
    const auto part = [&chunk](const at::Tensor& x) { return x.narrow(0, chunk.begin, chunk.count); };
    const at::Tensor input = gather_rows(rows_RD, part(row_C));
    at::Tensor gate_up = saved != nullptr ? part(saved->gate_up_C2F)
                                          : at::empty({chunk.count, 2 * slab.width()}, rows_RD.options());
    multiply_into(gate_up, input, gate_ups[chunk.slot].t());
    add_biases_(gate_up, gate_up_bias, chunk);
    // The weight is applied before the down projection: it is linear, and the rows are gone after it.
    const at::Tensor act = swiglu_forward(gate_up, part(weights_C), Path::kAuto, slab.activation);
    at::Tensor out = part(out_CH);
    multiply_into(out, act, downs[chunk.slot].t());
    add_biases_(out, down_bias, chunk, weights_C);
  });
  return out_CH;
}

/// What the backward pass computes on its way, each for all copies.
struct Backward {
  at::Tensor input_CD;  ///< undefined where only gradients of inputs are wanted, from saved gate and up
  at::Tensor dout_CD;
  at::Tensor gate_up_C2F;  ///< then its gradient
  at::Tensor act_CF;       ///< its gradient, then itself
  at::Tensor drows_CD, dweights_C;

  /// The gradients take the place of gate and up, the activation that of its gradient.
  void through_activation(const GatedActivation& activation, const at::Tensor& weights_C, i64 begin,
                          i64 count) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
    const at::Tensor gate_up = part(gate_up_C2F), act = part(act_CF);
    SwigluGradient gradient{gate_up, act, part(dweights_C)};
    swiglu_backward_out(gradient, gate_up, part(weights_C), act, Path::kAuto, activation);
  }
};

void input_gradients_each(Backward& b, const ExpertSlab& slab, const CopyGroups& groups,
                          const at::Tensor& weights_C) {
  const bool recompute = !b.gate_up_C2F.defined();
  const at::TensorOptions options = b.dout_CD.options();
  if (recompute) b.gate_up_C2F = at::empty({groups.num_copies(), 2 * slab.width()}, options);
  b.act_CF = at::empty({groups.num_copies(), slab.width()}, options);
  b.drows_CD = at::empty_like(b.dout_CD);
  const at::Tensor gate_ups = gate_up_matrices(slab), downs = down_matrices(slab);
  const at::Tensor gate_up_bias = gate_up_biases(slab);
  run_tasks(make_chunks(slab, groups), options.device(), [&](const Chunk& chunk) {
    const auto part = [&chunk](const at::Tensor& x) { return x.narrow(0, chunk.begin, chunk.count); };
    at::Tensor gate_up = part(b.gate_up_C2F), act = part(b.act_CF), drows = part(b.drows_CD);
    if (recompute) {
      multiply_into(gate_up, part(b.input_CD), gate_ups[chunk.slot].t());
      add_biases_(gate_up, gate_up_bias, chunk);
    }
    multiply_into(act, part(b.dout_CD), downs[chunk.slot]);
    b.through_activation(slab.activation, weights_C, chunk.begin, chunk.count);
    multiply_into(drows, gate_up, gate_ups[chunk.slot]);
  });
}

void weight_gradients_each(const Backward& b, ExpertSlab& slab, const CopyGroups& groups) {
  run_tasks(make_tiles(slab, groups), b.dout_CD.device(), [&](const GradTile& tile) {
    const bool down = tile.weight == GradTile::Weight::kDown;
    const auto part = [&tile](const at::Tensor& x) {
      return x.narrow(0, tile.copies.begin, tile.copies.count);
    };
    const at::Tensor left = part(down ? b.dout_CD : b.gate_up_C2F).narrow(1, tile.first, tile.rows);
    const at::Tensor& grad = down ? slab.down_grad : slab.gate_up_grad;
    add_product_(grad[tile.copies.slot].narrow(0, tile.first, tile.rows), left.t(),
                 part(down ? b.act_CF : b.input_CD));
  });
}

// ---- all experts at once ----

/// The products of all experts: in one kernel, or one after another on the device, whose host waits for none.
class AllProducts {
 public:
  AllProducts(const CopyGroups& groups, ExpertProducts products, const at::Device& device)
      : groups_(groups), grouped_(products == ExpertProducts::kGrouped) {
    if (grouped_)
      ends_ = groups.ends.defined() ? groups.ends
                                    : to_device(int32_tensor(std::span(groups.offsets).subspan(1)), device);
  }

  /// out[c] = a[c] weight[slot of c]
  at::Tensor operator()(const at::Tensor& a_CX, const at::Tensor& weight_SXY) const {
    if (grouped_) return at::_grouped_mm(a_CX, weight_SXY, ends_);
    at::Tensor out = at::empty({a_CX.size(0), weight_SXY.size(2)}, a_CX.options());
    for (const Chunk& slot : slots_with_copies(groups_)) {
      at::Tensor part = out.narrow(0, slot.begin, slot.count);
      multiply_into(part, a_CX.narrow(0, slot.begin, slot.count), weight_SXY[slot.slot]);
    }
    return out;
  }
  bool grouped() const { return grouped_; }
  const at::Tensor& ends() const {
    return ends_;
  }  ///< of the copies of each slot, on the device; if grouped()
  /// out[c] += (factor[c] *) the bias of c's slot. bias_SX undefined = there are none.
  void add_biases_to(const at::Tensor& out_CX, const at::Tensor& bias_SX,
                     const at::Tensor& factor_C = {}) const {
    if (!bias_SX.defined()) return;
    for (const Chunk& slot : slots_with_copies(groups_))
      add_biases_(out_CX.narrow(0, slot.begin, slot.count), bias_SX, slot, factor_C);
  }

 private:
  const CopyGroups& groups_;
  bool grouped_;
  at::Tensor ends_;
};

at::Tensor gate_up_of(const ExpertSlab& slab, const at::Tensor& input_CD, const AllProducts& multiply) {
  const at::Tensor out = multiply(input_CD, gate_up_matrices(slab).transpose(1, 2));
  multiply.add_biases_to(out, gate_up_biases(slab));
  return out;
}

at::Tensor forward_all(const ExpertSlab& slab, const at::Tensor& rows_RD, const AllProducts& multiply,
                       const at::Tensor& row_C, const at::Tensor& weights_C, ExpertsSaved* saved) {
  const at::Tensor gate_up_C2F = gate_up_of(slab, gather_rows(rows_RD, row_C), multiply);
  if (saved != nullptr) saved->gate_up_C2F = gate_up_C2F;
  const at::Tensor out = multiply(swiglu_forward(gate_up_C2F, weights_C, Path::kAuto, slab.activation),
                                  down_matrices(slab).transpose(1, 2));
  multiply.add_biases_to(out, down_biases(slab), weights_C);
  return out;
}

/// Neighbouring slots that all have copies, and where these are.
struct Bunch {
  i64 slot, num_slots, begin, count;
};

/// A large expert goes alone, for libtorch has one product with a sum of fp32. Small ones go together, as
/// many as have room. On an H100 the 64 experts of a layer of OLMoE-1B-7B took 2.66 ms in bunches of 64 MiB
/// and 2.34 ms one by one (2026-11-26), but those are 128 launches a layer.
std::vector<Bunch> bunches_of(const std::vector<Chunk>& slots, i64 product_bytes, bool grouped) {
  const i64 most = grouped ? std::max<i64>(1, kMostProductBytes / product_bytes) : 1;
  std::vector<Bunch> out;
  for (const Chunk& chunk : slots) {
    if (out.empty() || out.back().slot + out.back().num_slots != chunk.slot || out.back().num_slots == most)
      out.push_back({chunk.slot, 0, chunk.begin, 0});
    ++out.back().num_slots;
    out.back().count += chunk.count;
  }
  return out;
}

/// Where the copies of the slots of all bunches end, counted from the begin of their bunch; on the device.
at::Tensor ends_in_bunches(const std::vector<Bunch>& bunches, const CopyGroups& groups,
                           const AllProducts& products) {
  if (bunches.size() == 1 && bunches[0].slot == 0) return products.ends();
  std::vector<i64> ends;
  for (const Bunch& bunch : bunches) {
    for (i64 slot = bunch.slot; slot < bunch.slot + bunch.num_slots; ++slot)
      ends.push_back(groups.offsets[idx(slot + 1)] - bunch.begin);
  }
  return to_device(int32_tensor(ends), products.ends().device());
}

/// grad[slot] += left^T right over the copies of each slot.
void add_products(const at::Tensor& grad_SXY, const at::Tensor& left_CX, const at::Tensor& right_CY,
                  const CopyGroups& groups, const AllProducts& products, const std::vector<Chunk>& slots) {
  if (slots.empty()) return;
  const i64 product_bytes = grad_SXY[0].numel() * static_cast<i64>(left_CX.element_size());
  const std::vector<Bunch> bunches = bunches_of(slots, product_bytes, products.grouped());
  const bool all_alone = bunches.size() == slots.size();
  const at::Tensor ends = all_alone ? at::Tensor() : ends_in_bunches(bunches, groups, products);
  i64 first = 0;  // of the bunch's ends
  for (const Bunch& bunch : bunches) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, bunch.begin, bunch.count); };
    if (bunch.num_slots == 1) {
      add_product_(grad_SXY[bunch.slot], part(left_CX).t(), part(right_CY));
    } else {
      grad_SXY.narrow(0, bunch.slot, bunch.num_slots)
          .add_(at::_grouped_mm(part(left_CX).t(), part(right_CY), ends.narrow(0, first, bunch.num_slots)));
    }
    first += bunch.num_slots;
  }
}

void input_gradients_all(Backward& b, const ExpertSlab& slab, const CopyGroups& groups,
                         const AllProducts& multiply, const at::Tensor& weights_C) {
  if (!b.gate_up_C2F.defined()) b.gate_up_C2F = gate_up_of(slab, b.input_CD, multiply);
  b.act_CF = multiply(b.dout_CD, down_matrices(slab));
  b.through_activation(slab.activation, weights_C, 0, groups.num_copies());
  b.drows_CD = multiply(b.gate_up_C2F, gate_up_matrices(slab));
}

void weight_gradients_all(const Backward& b, ExpertSlab& slab, const CopyGroups& groups,
                          const AllProducts& multiply) {
  const std::vector<Chunk> slots = trainable_slots_with_copies(slab, groups);
  add_products(matrices_of(slab.gate_up_grad, 2 * slab.width()), b.gate_up_C2F, b.input_CD, groups, multiply,
               slots);
  add_products(matrices_of(slab.down_grad, slab.hidden()), b.dout_CD, b.act_CF, groups, multiply, slots);
}

/// How the experts go through all at once, if they do: as was asked, or where kernels of our own run. Without
/// a copy there is nothing to group.
std::optional<AllProducts> all_at_once(ExpertProducts products, const ExpertSlab& slab,
                                       const CopyGroups& groups) {
  if (groups.num_copies() == 0) return std::nullopt;
  const bool automatic = products == ExpertProducts::kAuto;
  if (automatic) products = expert_products(slab);
  if (products != ExpertProducts::kGrouped && !(automatic && runs_on_kernels(slab.down))) return std::nullopt;
  return AllProducts(groups, products, slab.down.device());
}

ExpertSlab without_adapters(ExpertSlab slab) {
  slab.adapters.clear();
  return slab;
}

/// A slab with adapters as one without: matrices that these have changed.
ExpertSlab changed_by_adapters(const ExpertSlab& slab) {
  ExpertSlab out = without_adapters(slab);
  out.gate_up = with_adapters(slab.gate_up, slab.adapters, 0);
  out.down = with_adapters(slab.down, slab.adapters, 1);
  return out;
}

/// Calls f with `changed`, which gets room for gradients, and hands these on to the adapters of the slab.
template <class F>
void with_gradients(const ExpertSlab& slab, ExpertSlab changed, F f) {
  const at::TensorOptions options = slab.adapters[0].a_grad.options();
  changed.gate_up_grad = at::zeros(slab.gate_up.sizes(), options);
  changed.down_grad = at::zeros(slab.down.sizes(), options);
  f(changed);
  add_adapter_gradients(slab.adapters, 0, changed.gate_up_grad);
  add_adapter_gradients(slab.adapters, 1, changed.down_grad);
}

}  // namespace

bool can_group_products(at::ScalarType dtype, i64 num_slots, i64 hidden, i64 width) {
  constexpr i64 kAligned = 8;       // 16 bytes
  constexpr i64 kMostSlots = 1023;  // of libtorch's kernel
  return dtype == at::kBFloat16 && num_slots <= kMostSlots && hidden % kAligned == 0 && width % kAligned == 0;
}

ExpertProducts expert_products(const ExpertSlab& slab) {
  const at::Tensor& down = slab.down;
  if (!can_group_products(down.scalar_type(), slab.num_slots(), slab.hidden(), slab.width()))
    return ExpertProducts::kEach;
  if (slab.products != ExpertProducts::kAuto) return slab.products;
  const int generation = compute_capability(down.device()) / 10;
  return generation == 9 || generation == 10 ? ExpertProducts::kGrouped : ExpertProducts::kEach;
}

at::Tensor experts_forward(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                           const at::Tensor& weights_C, ExpertsSaved* saved, ExpertProducts products) {
  if (!slab.adapters.empty())
    return experts_forward(changed_by_adapters(slab), rows_RD, groups, weights_C, saved, products);
  const at::Tensor row_C = groups.row_C.to(rows_RD.device());
  const std::optional<AllProducts> all = all_at_once(products, slab, groups);
  const at::Tensor out_CH = all ? forward_all(slab, rows_RD, *all, row_C, weights_C, saved)
                                : forward_each(slab, rows_RD, groups, row_C, weights_C, saved);
  return sum_copies(out_CH, groups, row_C);
}

ExpertsSaved experts_recompute(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                               ExpertProducts products) {
  if (!slab.adapters.empty()) return experts_recompute(changed_by_adapters(slab), rows_RD, groups, products);
  const at::Tensor row_C = groups.row_C.to(rows_RD.device());
  if (const std::optional<AllProducts> all = all_at_once(products, slab, groups))
    return {gate_up_of(slab, gather_rows(rows_RD, row_C), *all)};
  ExpertsSaved saved{at::empty({groups.num_copies(), 2 * slab.width()}, rows_RD.options())};
  const at::Tensor gate_ups = gate_up_matrices(slab), bias = gate_up_biases(slab);
  run_tasks(make_chunks(slab, groups), rows_RD.device(), [&](const Chunk& chunk) {
    at::Tensor gate_up = saved.gate_up_C2F.narrow(0, chunk.begin, chunk.count);
    multiply_into(gate_up, gather_rows(rows_RD, row_C.narrow(0, chunk.begin, chunk.count)),
                  gate_ups[chunk.slot].t());
    add_biases_(gate_up, bias, chunk);
  });
  return saved;
}

ExpertsGradient experts_backward(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                                 const at::Tensor& weights_C, ExpertsSaved* saved, const at::Tensor& dout_RD,
                                 ExpertProducts products, ExpertsLeft* left) {
  if (!slab.adapters.empty()) {
    ExpertsGradient out;
    const auto backward = [&](ExpertSlab& changed) {
      out = experts_backward(changed, rows_RD, groups, weights_C, saved, dout_RD, products, left);
    };
    if (left == nullptr) {
      with_gradients(slab, changed_by_adapters(slab), backward);
    } else {
      ExpertSlab changed = changed_by_adapters(slab);
      backward(changed);
    }
    return out;
  }
  Backward b;
  const at::Tensor row_C = groups.row_C.to(rows_RD.device());
  if (saved == nullptr || left == nullptr) b.input_CD = gather_rows(rows_RD, row_C);
  b.dout_CD = gather_rows(dout_RD, row_C);
  b.dweights_C = at::empty_like(weights_C);
  if (saved != nullptr) b.gate_up_C2F = std::exchange(saved->gate_up_C2F, {});
  const std::optional<AllProducts> all = all_at_once(products, slab, groups);
  all ? input_gradients_all(b, slab, groups, *all, weights_C)
      : input_gradients_each(b, slab, groups, weights_C);
  add_bias_to_dweights_(b.dweights_C, slab, groups, b.dout_CD);
  if (left != nullptr) {
    *left = {b.gate_up_C2F, b.act_CF, slab.has_biases() ? weights_C : at::Tensor()};
  } else {
    all ? weight_gradients_all(b, slab, groups, *all) : weight_gradients_each(b, slab, groups);
    add_bias_gradients(slab, groups, b.gate_up_C2F, b.dout_CD, weights_C);
  }
  return {sum_copies(b.drows_CD, groups, row_C), b.dweights_C};
}

void experts_weight_gradients(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                              const ExpertsLeft& left, const at::Tensor& dout_RD, ExpertProducts products) {
  if (!slab.adapters.empty()) {
    // The matrices themselves are not needed, and may have left.
    return with_gradients(slab, without_adapters(slab), [&](ExpertSlab& changed) {
      experts_weight_gradients(changed, rows_RD, groups, left, dout_RD, products);
    });
  }
  Backward b;
  const at::Tensor row_C = groups.row_C.to(rows_RD.device());
  b.input_CD = gather_rows(rows_RD, row_C);
  b.dout_CD = gather_rows(dout_RD, row_C);
  b.gate_up_C2F = left.dgate_up_C2F, b.act_CF = left.act_CF;
  const std::optional<AllProducts> all = all_at_once(products, slab, groups);
  all ? weight_gradients_all(b, slab, groups, *all) : weight_gradients_each(b, slab, groups);
  add_bias_gradients(slab, groups, left.dgate_up_C2F, b.dout_CD, left.weights_C);
}

}  // namespace hetermoe
