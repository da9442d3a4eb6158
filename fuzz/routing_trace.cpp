#include "fuzz/scratch.h"
#include "fuzz/target.h"
#include "hetermoe/base/checksum.h"
#include "hetermoe/routing/frames.h"
#include "hetermoe/routing/writer.h"

// A routing trace: what is read of it must read back the same when it is written anew.
namespace hetermoe::fuzz {
namespace {

/// The same with checksums that are right, so that what they protect is looked at.
std::string repaired(std::string bytes) {
  frames::FileHead start;
  if (bytes.size() < sizeof(start)) return bytes;
  std::memcpy(&start, bytes.data(), sizeof(start));
  std::size_t at = sizeof(start) + start.header_bytes;
  if (at > bytes.size()) return bytes;
  start.checksum = checksum(bytes.data() + sizeof(start), start.header_bytes);
  std::memcpy(bytes.data(), &start, sizeof(start));
  for (frames::Head head; bytes.size() - at >= sizeof(head);) {
    std::memcpy(&head, bytes.data() + at, sizeof(head));
    const std::size_t left = bytes.size() - at - sizeof(head);
    if (head.bytes > left || frames::padded(head.bytes) > left) break;
    head.checksum = frames::checksum_of(head, bytes.data() + at + sizeof(head));
    std::memcpy(bytes.data() + at, &head, sizeof(head));
    at += sizeof(head) + frames::padded(head.bytes);
  }
  return bytes;
}

void read(const std::string& input) {
  static ScratchFile file, again;
  file.write(input);
  const RoutingTrace trace(file.path());
  const std::filesystem::path copy = again.path();
  RoutingWriter writer(copy, trace.header());
  for (const i64 step : trace.steps()) {
    const TraceStep read = trace.read(step);
    writer.step(read, read.has_choices() ? TraceDetail::kChoices : TraceDetail::kCounts);
  }
  writer.finish();
  const RoutingTrace second(copy);
  if (second.steps() != trace.steps()) throw std::logic_error("what was written has other steps");
  for (const i64 step : trace.steps()) {
    if (second.read(step).counts != trace.read(step).counts)
      throw std::logic_error("what was written reads back as another");
  }
}

void run(const std::string& input) {
  try {
    read(input);
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {  // as it should be for most
  }
  read(repaired(input));
}

/// Two sequences of one step; with weights, with wide ids, with counts alone.
std::vector<std::string> seeds() {
  std::vector<std::string> out;
  const ScratchFile file;
  for (const i64 num_experts : {4, 300}) {
    for (const TraceDetail detail : {TraceDetail::kChoices, TraceDetail::kCounts}) {
      TraceHeader header;
      header.layers = {1, 2};
      header.num_experts = num_experts;
      header.top_k = 2;
      header.domains = {"code"};
      if (num_experts == 300) header.weights = TraceWeights::kF32;
      TraceStep step;
      step.sequences = {{.index = 7, .tokens = 3, .prompt = 3},
                        {.index = 8, .tokens = 2, .prompt = 1, .domain = 0}};
      step.choices.assign(2, {0, 1, 2, 3, 1, 0, 2, kNoExpert, 3, 1});
      step.weights.assign(2, std::vector<float>(10, 0.5F));
      index_tokens(step);
      count_choices(step, header);
      RoutingWriter writer(file.path(), header);
      writer.step(step, detail);
      writer.finish();
      out.push_back(read_text(file.path()));
    }
  }
  return out;
}

}  // namespace

extern const Target kRoutingTrace{"routing_trace", run, seeds};

}  // namespace hetermoe::fuzz
