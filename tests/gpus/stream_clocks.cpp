#include "tests/gpus/stream_clocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "hetermoe/base/error.h"

namespace hetermoe::testing {
namespace fake {

thread_local std::string work_name;

void merge(Clock& into, const Clock& from) {
  for (std::size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], from[s]);
}

World& world() {
  static World* const all = new World;  // tensors may outlive every static object
  return *all;
}

std::size_t index_of(const c10::Stream& stream) {
  return idx(stream.device_index()) * kStreams + idx(stream.id());
}
std::size_t stream_of(c10::DeviceIndex gpu) { return idx(gpu) * kStreams + idx(current_streams[idx(gpu)]); }

std::string name_of(std::size_t stream) {
  return fmt::format("stream {} of GPU {}", stream % kStreams, stream / kStreams);
}

void add_fault(std::string text) {
  constexpr std::size_t kMost = 20;
  std::vector<std::string>& faults = world().faults;
  if (faults.size() < kMost && std::find(faults.begin(), faults.end(), text) == faults.end())
    faults.push_back(std::move(text));
}

/// What `stream` does next begins after the access.
bool comes_after(std::size_t stream, const Access& access) {
  return access.stream == stream || world().clocks[stream][access.stream] >= access.tick ||
         world().ended[access.stream] >= access.tick;
}

void end_late_copies() {
  World& w = world();
  for (auto copy = w.late.begin(); copy != w.late.end();) {
    if (w.ended[copy->stream] < copy->tick) {
      ++copy;
      continue;
    }
    copy->target.copy_(copy->contents);
    copy = w.late.erase(copy);
  }
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void end_late_reads() {
  World& w = world();
  for (auto read = w.late_reads.begin(); read != w.late_reads.end();) {
    if (w.ended[read->stream] < read->tick) {
      ++read;
      continue;
    }
    if (!same_bytes(read->source, read->contents))
      add_fault(
          fmt::format("the host changed what {} on {} may still read", read->op, name_of(read->stream)));
    read = w.late_reads.erase(read);
  }
}

void host_knows(const Clock& clock) {
  merge(world().ended, clock);
  end_late_copies();
  end_late_reads();
}

void host_waits(std::size_t stream, const std::string& op) {
  ++world().waits[op];
  host_knows(world().clocks[stream]);
}

/// Lowest and highest address of a tensor's elements.
std::pair<const char*, const char*> extent(const at::Tensor& tensor) {
  const char* begin = static_cast<const char*>(tensor.const_data_ptr());
  if (tensor.numel() == 0 || begin == nullptr) return {begin, begin};
  i64 last = 0;
  for (i64 d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + (last + 1) * static_cast<i64>(tensor.element_size())};
}

void touch(const at::Tensor& tensor, std::size_t stream, bool writes, const std::string& op) {
  const auto [begin, end] = extent(tensor);
  const auto found = world().memory.find(tensor.storage().data());
  if (begin == end || found == world().memory.end()) return;
  std::vector<Access>& accesses = found->second.accesses;
  for (const Access& before : accesses) {
    if (before.end <= begin || end <= before.begin || !(writes || before.writes)) continue;
    if (comes_after(stream, before)) continue;
    add_fault(fmt::format("{} on {} {} what {} on {} {}, and does not wait for it", op, name_of(stream),
                          writes ? "writes" : "reads", before.op, name_of(before.stream),
                          before.writes ? "wrote" : "read"));
  }
  // What comes after this access comes after all that it came after.
  std::erase_if(accesses, [&, b = begin, e = end](const Access& before) {
    return b <= before.begin && before.end <= e && comes_after(stream, before) && (writes || !before.writes);
  });
  accesses.push_back({begin, end, stream, world().clocks[stream][stream], writes, op});
}

void take_memory(const void* base, std::size_t bytes, std::size_t stream) {
  if (base != nullptr) world().memory[base] = {bytes, stream, {}};
}

void give_back(const void* base) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const auto found = w.memory.find(base);
  if (found == w.memory.end()) return;
  for (const Access& access : found->second.accesses) {
    if (comes_after(found->second.stream, access)) continue;
    add_fault(fmt::format("memory of {} is dropped while {} on {} may still use it",
                          name_of(found->second.stream), access.op, name_of(access.stream)));
  }
  w.memory.erase(found);
}

std::string full_name(const std::string& op) { return work_name.empty() ? op : op + " of " + work_name; }

}  // namespace fake

void clear_fake_gpus() {
  fake::World& w = fake::world();
  const std::lock_guard lock(w.mutex);
  w.faults.clear();
  w.waits.clear();
  for (const fake::Clock& clock : w.clocks) fake::host_knows(clock);
  for (auto& [base, memory] : w.memory) memory.accesses.clear();
}

void lock_memory_for_fake_gpus(bool all) {
  const std::lock_guard lock(fake::world().mutex);
  fake::world().all_pinned = all;
}

std::vector<std::string> faults_of_fake_gpus() {
  const std::lock_guard lock(fake::world().mutex);
  return fake::world().faults;
}

std::map<std::string, i64> waits_for_fake_gpus() {
  const std::lock_guard lock(fake::world().mutex);
  return fake::world().waits;
}

void name_fake_work(const std::string& name) { fake::work_name = name; }

}  // namespace hetermoe::testing
