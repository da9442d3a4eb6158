#include <utility>

#include "hetermoe/train/checkpoint/checkpoint.h"

namespace hetermoe {

namespace fs = std::filesystem;

CheckpointWriter::CheckpointWriter(fs::path folder, const CheckpointOptions& options)
    : folder_(std::move(folder)), options_(options) {}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::write(CheckpointShard shard) {
  finish();
  if (!options_.async) {
    write_checkpoint(folder_, shard, options_.keep);
    return;
  }
  keep_copies(shard);
  thread_ = std::thread([this, shard = std::move(shard)] {
    try {
      write_checkpoint(folder_, shard, options_.keep);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void CheckpointWriter::finish() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace hetermoe
