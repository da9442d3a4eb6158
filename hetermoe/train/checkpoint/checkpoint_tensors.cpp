#include <map>

#include "hetermoe/train/checkpoint/checkpoint.h"
#include "hetermoe/train/checkpoint/checkpoint_archive.h"
#include "hetermoe/train/job/lora.h"

namespace hetermoe {
namespace {

/// Of the header of a file: name, dtype, shape, place and checksum of a tensor, generously.
constexpr Bytes kHeaderBytes = 400;

OutTensor copied(const std::string& name, const at::Tensor& tensor) {
  return {{name, tensor.scalar_type(), tensor.sizes().vec()}, [tensor] { return host_copy(tensor); }};
}

/// Values that are divided over devices, each in one where all parts are here.
void add_pieces(const std::vector<LogicalTensor>& pieces, CheckpointShard& shard) {
  const std::string& name = pieces[0].name;
  i64 here = 0;
  for (const LogicalTensor& piece : pieces) here += piece.value.numel();
  if (here == c10::multiply_integers(pieces[0].shape)) {
    shard.model.push_back({{name, pieces[0].value.scalar_type(), pieces[0].shape},
                           [pieces] { return joined(pieces, &LogicalTensor::value); }});
    return;
  }
  for (const LogicalTensor& piece : pieces) {
    if (piece.value.numel() > 0) shard.model.push_back(copied(piece_name(name, piece.first), piece.value));
  }
}

}  // namespace

void collect_tensors(const std::vector<DeviceState*>& states, CheckpointShard& shard) {
  std::map<std::string, std::vector<LogicalTensor>> gathered;
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (tensor.gathered)
        gathered[tensor.name].push_back(tensor);
      else if (tensor.first_owner)
        (is_adapter(tensor.name) ? shard.optimizer : shard.model)
            .push_back(copied(tensor.name, tensor.value));
      if (tensor.lost.defined())
        shard.optimizer.push_back(copied(lost_name(tensor.name, state->device()), tensor.lost));
      if (!tensor.first_owner && !tensor.sharded) continue;
      const auto add = [&](const char* suffix, const at::Tensor& moment) {
        if (!moment.defined() || (tensor.sharded && moment.numel() == 0)) return;
        const std::string name = tensor.name + suffix;
        shard.optimizer.push_back(copied(tensor.sharded ? piece_name(name, tensor.first) : name, moment));
      };
      add(".exp_avg", tensor.exp_avg);
      add(".exp_avg_sq", tensor.exp_avg_sq);
      add(".master", tensor.master);
      add(".published", tensor.published);
    }
  }
  for (const auto& [name, pieces] : gathered) add_pieces(pieces, shard);
}

void keep_copies(CheckpointShard& shard) {
  for (auto* tensors : {&shard.model, &shard.optimizer}) {
    for (OutTensor& tensor : *tensors) tensor.make = [made = tensor.make()] { return made; };
  }
}

Bytes bytes_of(const CheckpointShard& shard) {
  Bytes sum = 0;
  for (const auto* tensors : {&shard.model, &shard.optimizer}) {
    for (const OutTensor& tensor : *tensors) sum += static_cast<Bytes>(tensor.head.bytes()) + kHeaderBytes;
  }
  return sum;
}

}  // namespace hetermoe
