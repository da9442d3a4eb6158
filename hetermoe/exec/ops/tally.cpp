#include <algorithm>

#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/ops/op_functions.h"

// tally: sources tell how many copies each expert has, and all divide them alike.
namespace hetermoe {
namespace {

void pack_counts(OpContext& d, const Op& op, Devices, std::vector<Message>& out) {
  if (!d.p.is_source(op, d.device())) return;
  const at::Tensor topk =
      to_host(taken_choices(d, d.slots.layer(op.layer, op.microbatch)), "choices").to(at::kLong);
  const at::Tensor flat = topk.reshape({-1}).contiguous();
  const i32 num_chunks = d.p.plan().chunks;
  const at::Tensor counts = at::zeros({num_chunks, d.model.num_experts}, at::kInt);
  for (i32 c = 0; c < num_chunks; ++c) {
    const auto [begin, end] = chunk_range(topk.size(0), c, num_chunks);
    const std::span<const i64> ids(flat.const_data_ptr<i64>() + begin * d.model.top_k,
                                   idx((end - begin) * d.model.top_k));
    const std::vector<i64> of_chunk = count_copies(ids, d.model.num_experts);
    std::transform(of_chunk.begin(), of_chunk.end(), counts[c].data_ptr<i32>(),
                   [](i64 count) { return static_cast<i32>(count); });
  }
  const at::Tensor sent = to_device(counts, d.where());
  for (Message& message : out) message.tensors.push_back(sent);
}

MessageShape expected_counts(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  if (!d.p.is_source(op, peer)) return {};
  return {.numbers = 0, .values = 0, .tensors = {{at::kInt, {d.p.plan().chunks, d.model.num_experts}}}};
}

/// Devices that divide by other counts would wait for each other's rows. counts: of a source.
void check_counts(OpContext& d, const TokenRange& source, const i32* counts) {
  const i32* next = counts;
  const DeviceId peer = source.device;
  for (i32 c = 0; c < d.p.plan().chunks; ++c) {
    i64 sum = 0;
    for (i64 e = 0; e < d.model.num_experts; ++e, ++next) {
      if (*next < 0)
        fail<TransportError>(d.name_of_peer(peer), "copies of expert {}: got {}, expected 0 or more", e,
                             *next);
      sum += *next;
    }
    const auto [begin, end] = chunk_range(source.tokens(), c, d.p.plan().chunks);
    check_copies(d, peer, "copies of all experts", sum, end - begin);
  }
}

void unpack_counts(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.p.is_source(op, d.device()) && !d.p.lends(op.group, op.layer)) return;
  std::vector<at::Tensor> told;
  for (const TokenRange source : d.p.ranges(op))
    told.push_back(in[position(participants, source.device)].tensors[0]);
  const at::Tensor counts = told_to_host(d, std::move(told), "counts");
  const i32* next = counts.const_data_ptr<i32>();
  std::vector<SourceCopies> chunks(idx(d.p.plan().chunks));
  for (const TokenRange source : d.p.ranges(op)) {
    check_counts(d, source, next);
    for (SourceCopies& chunk : chunks) {
      chunk.emplace_back(next, next + d.model.num_experts);
      next += d.model.num_experts;
    }
  }
  d.slots.layer(op.layer, op.microbatch).tally =
      std::make_unique<DecidedSplit>(decide_split(d, op.layer, op.microbatch, std::move(chunks)));
}

}  // namespace

ExecOp exec_ops::tally() {
  return TransferOp{.pack = pack_counts, .expected = expected_counts, .unpack = unpack_counts};
}

}  // namespace hetermoe
