#include "hetermoe/routing/writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/routing/frames.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<TraceDetail>::names() {
  static const std::vector<std::string> all = {"choices", "counts"};
  return all;
}

namespace {

/// An open file, closed unless it is given away.
class OpenFile {
 public:
  explicit OpenFile(int file) : file_(file) {}
  ~OpenFile() {
    if (file_ >= 0) ::close(file_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return file_; }
  int give() { return std::exchange(file_, -1); }

 private:
  int file_;
};

/// A text, say, that somebody named by mistake would be lost.
void check_is_trace(const std::filesystem::path& path) {
  std::string head(8, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), 8);
  head.resize(static_cast<std::size_t>(in.gcount()));
  if (!std::string_view(frames::kMagic).starts_with(head))
    fail<ConfigError>(path.string(),
                      "is no routing trace, and writing one would destroy it. Name another file");
}

/// A file that no other process writes a trace to, new or one of a trace; a pipe or a device as it is.
int open_to_write(const std::filesystem::path& path, bool anew) {
  std::error_code ignored;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  OpenFile file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  const auto cannot = [&] {
    fail<IoError>(path.string(), "cannot be written: {}", std::string(std::strerror(errno)));
  };
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) cannot();
  if (!S_ISREG(info.st_mode)) return file.give();
  // The lock ends with the file. Where the file system has none, it protects nothing.
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail<ConfigError>(path.string(),
                      "is being written by another process. Wait for it to end, or name another file");
  check_is_trace(path);
  if (anew && ::ftruncate(file.get(), 0) != 0) cannot();
  return file.give();
}

}  // namespace

RoutingWriter::RoutingWriter(const std::filesystem::path& path, const TraceHeader& header)
    : header_(header), name_(path.string()), file_(open_to_write(path, /*anew=*/true)) {
  const std::string text = frames::header_text(header);
  frames::FileHead head{};
  std::memcpy(head.magic, frames::kMagic, 8);
  head.version = frames::kVersion;
  head.header_bytes = static_cast<std::uint32_t>(text.size());
  head.checksum = checksum(text.data(), text.size());
  write(&head, sizeof(head));
  write(text.data(), text.size());
}

RoutingWriter RoutingWriter::resume(const std::filesystem::path& path, const TraceHeader& header, i64 step) {
  if (step == 0 || !std::filesystem::exists(path)) return RoutingWriter(path, header);
  OpenFile file(open_to_write(path, /*anew=*/false));
  const frames::InputFile old(path);
  const frames::FileStart start = frames::read_start(old);
  if (start.header != header)
    fail<InputError>(path.string(),
                     "the run cannot go on with this trace: got header {}, expected {}. Take another file",
                     frames::header_text(start.header), frames::header_text(header));
  frames::Walk walk(old, start.end);
  i64 num_frames = 0, last_step = 0;
  u64 end = start.end;
  while (walk.next() && walk.head().kind != frames::kEnd && walk.head().step < step) {
    ++num_frames;
    last_step = std::max(last_step, walk.head().step);
    end = walk.offset();
  }
  RoutingWriter writer(header, path.string(), file.give(), num_frames);
  writer.last_step_ = last_step;
  if (::ftruncate(writer.file_, static_cast<::off_t>(end)) != 0 || ::lseek(writer.file_, 0, SEEK_END) < 0)
    fail<IoError>(path.string(), "cannot be cut: {}", std::string(std::strerror(errno)));
  return writer;
}

RoutingWriter::RoutingWriter(RoutingWriter&& other) noexcept
    : header_(std::move(other.header_)),
      name_(std::move(other.name_)),
      file_(std::exchange(other.file_, -1)),
      num_frames_(other.num_frames_),
      last_step_(other.last_step_) {}

RoutingWriter::~RoutingWriter() {
  if (file_ >= 0) ::close(file_);
}

void RoutingWriter::write(const void* data, u64 bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ::ssize_t done = ::write(file_, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail<WriteError>(name_, "cannot be written: {}", std::string(std::strerror(errno)));
    at += done;
    bytes -= static_cast<u64>(done);
  }
}

void RoutingWriter::frame(u64 kind, i64 step, i64 layer, i64 first, i64 count, const std::string& payload) {
  HM_CHECK(file_ >= 0, "the trace {} is finished", name_);
  frames::Head head{.kind = static_cast<std::uint32_t>(kind),
                    .layer = static_cast<std::uint32_t>(layer),
                    .step = step,
                    .first = first,
                    .count = static_cast<std::uint32_t>(count),
                    .zero = 0,
                    .bytes = payload.size(),
                    .checksum = 0};
  head.checksum = frames::checksum_of(head, payload.data());
  std::string whole(reinterpret_cast<const char*>(&head), sizeof(head));
  whole += payload;
  whole.resize(sizeof(head) + frames::padded(payload.size()), '\0');
  write(whole.data(), whole.size());
  ++num_frames_;
}

void RoutingWriter::sequences(i64 step, i64 first, std::span<const TraceSequence> sequences) {
  const std::string payload(reinterpret_cast<const char*>(sequences.data()), sequences.size_bytes());
  frame(frames::kSequences, step, 0, first, static_cast<i64>(sequences.size()), payload);
}

void RoutingWriter::choices(i64 step, i64 layer, i64 first, i64 count, std::span<const std::uint16_t> ids,
                            std::span<const float> weights) {
  const u64 tokens = ids.size() / idx(header_.top_k);
  HM_CHECK(weights.size() == (header_.weights == TraceWeights::kNone ? 0 : ids.size()),
           "{} weights for {} choices", weights.size(), ids.size());
  std::string payload(frames::choices_bytes(header_, tokens), '\0');
  if (frames::id_bytes(header_) == 2) {
    std::memcpy(payload.data(), ids.data(), ids.size_bytes());
  } else {
    for (std::size_t i = 0; i < ids.size(); ++i) payload[i] = static_cast<char>(ids[i] & 0xff);
  }
  if (!weights.empty())
    std::memcpy(payload.data() + frames::weights_begin(header_, tokens), weights.data(),
                weights.size_bytes());
  frame(frames::kChoices, step, layer, first, count, payload);
}

void RoutingWriter::counts(i64 step, i64 layer, i64 first, i64 count, std::span<const std::uint32_t> counts) {
  const std::string payload(reinterpret_cast<const char*>(counts.data()), counts.size_bytes());
  frame(frames::kCounts, step, layer, first, count, payload);
}

void RoutingWriter::step(const TraceStep& step, TraceDetail detail) {
  sequences(step.step, 0, step.sequences);
  for (std::size_t l = 0; l < header_.layers.size(); ++l) {
    if (detail == TraceDetail::kCounts) {
      counts(step.step, header_.layers[l], 0, step.num_sequences(), step.counts[l]);
    } else {
      choices(step.step, header_.layers[l], 0, step.num_sequences(), step.choices[l],
              header_.weights == TraceWeights::kNone ? std::span<const float>() : step.weights[l]);
    }
  }
}

void RoutingWriter::sync() {
  if (::fsync(file_) != 0 && errno != EINVAL && errno != EROFS)  // which pipes and devices answer
    fail<WriteError>(name_, "cannot be written: {}", std::string(std::strerror(errno)));
}

void RoutingWriter::finish() {
  const i64 before = num_frames_;
  frame(frames::kEnd, 0, 0, 0, 0, std::string(reinterpret_cast<const char*>(&before), sizeof(before)));
  sync();
  if (::close(std::exchange(file_, -1)) != 0)
    fail<WriteError>(name_, "cannot be written: {}", std::string(std::strerror(errno)));
}

}  // namespace hetermoe
