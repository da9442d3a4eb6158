#include "hetermoe/routing/frames.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<TraceWeights>::names() {
  static const std::vector<std::string> all = {"none", "f32"};
  return all;
}

}  // namespace hetermoe

namespace hetermoe::frames {

static_assert(std::endian::native == std::endian::little,
              "frames are read and written as they lie in memory");

namespace {
/// Products of a file's sizes stay far from overflow.
constexpr u64 kMostBytes = u64{1} << 44;
constexpr u64 kMostHeader = u64{1} << 26;

u64 aligned(u64 bytes) { return (bytes + 3) / 4 * 4; }
}  // namespace

u64 checksum_of(const Head& head, const void* payload) {
  return checksum(payload, head.bytes, checksum(&head, offsetof(Head, checksum)));
}

u64 weights_begin(const TraceHeader& header, u64 tokens) {
  return aligned(tokens * static_cast<u64>(header.top_k) * id_bytes(header));
}

u64 choices_bytes(const TraceHeader& header, u64 tokens) {
  const u64 copies = tokens * static_cast<u64>(header.top_k);
  if (header.weights == TraceWeights::kNone) return copies * id_bytes(header);
  return weights_begin(header, tokens) + 4 * copies;
}

std::string header_text(const TraceHeader& header) {
  Json json = write_fields(header);
  for (const char* key : {"model", "seq_len", "condition", "source", "job", "text", "sequences"}) {
    if (json.at(key).is_null()) json.erase(key);
  }
  std::string text = json.dump();
  text.resize(padded(text.size()), ' ');
  return text;
}

TraceHeader header_from(const std::string& text, const std::string& where) {
  TraceHeader header;
  try {
    read_fields(parse_json(text, "header"), header, "header ");
  } catch (const Error& error) {
    throw InputError(fmt::format("[{}] {}", printable(where), error.what()));
  }
  const std::vector<i64>& layers = header.layers;
  if (layers.empty() ||
      std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) != layers.end())
    fail<InputError>(where, "layers of the header: got {}, expected at least one, ascending",
                     Json(layers).dump());
  if (header.top_k > header.num_experts)
    fail<InputError>(where, "top_k of the header: got {}, expected at most num_experts ({})", header.top_k,
                     header.num_experts);
  return header;
}

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without writer is refused
  struct ::stat info {};
  if (file_ < 0 || ::fstat(file_, &info) != 0) {
    const int error = errno;
    if (file_ >= 0) ::close(file_);
    fail<IoError>(name_, "cannot be read: {}", std::string(std::strerror(error)));
  }
  size_ = static_cast<u64>(info.st_size);
  if (S_ISREG(info.st_mode) && size_ <= kMostBytes) return;
  ::close(file_);
  fail<InputError>(name_, "is no routing trace: got {}, expected a file of at most {} bytes",
                   S_ISREG(info.st_mode) ? fmt::format("{} bytes", size_) : "something that is no file",
                   kMostBytes);
}

InputFile::~InputFile() { ::close(file_); }

void InputFile::read(u64 offset, u64 bytes, void* out) const {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ::ssize_t got = ::pread(file_, at, bytes, static_cast<::off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      fail<IoError>(place(*this, offset), "cannot be read: {}",
                    std::string(got < 0 ? std::strerror(errno) : "the file has become shorter"));
    }
    at += got;
    offset += static_cast<u64>(got);
    bytes -= static_cast<u64>(got);
  }
}

std::string place(const InputFile& file, u64 offset) {
  return fmt::format("{} at byte {}", file.name(), offset);
}

FileStart read_start(const InputFile& file) {
  FileHead head;
  if (file.size() < sizeof(head))
    fail<InputError>(file.name(), "is no routing trace: got {} bytes, expected at least {}", file.size(),
                     sizeof(head));
  file.read(0, sizeof(head), &head);
  if (std::memcmp(head.magic, kMagic, 8) != 0)
    fail<InputError>(place(file, 0), "is no routing trace: got \"{}\", expected \"{}\"",
                     std::string(head.magic, 8), kMagic);
  if (head.version != kVersion)
    fail<InputError>(place(file, 8),
                     "version of the trace: got {}, expected {}. A newer hetermoe wrote it, or it is damaged",
                     head.version, kVersion);
  FileStart start;
  start.end = sizeof(head) + head.header_bytes;
  if (head.header_bytes > kMostHeader || head.header_bytes % 8 != 0)
    fail<InputError>(place(file, 12), "bytes of the header: got {}, expected a multiple of 8 of at most {}",
                     head.header_bytes, kMostHeader);
  if (start.end > file.size())
    fail<InputError>(place(file, file.size()), "is cut in its header: got {} bytes, expected {}", file.size(),
                     start.end);
  std::string text(head.header_bytes, ' ');
  file.read(sizeof(head), text.size(), text.data());
  const u64 sum = checksum(text.data(), text.size());
  if (sum != head.checksum)
    fail<InputError>(place(file, 16), "the header is damaged: got checksum {:016x}, expected {:016x}", sum,
                     head.checksum);
  start.header = header_from(text, place(file, sizeof(head)));
  return start;
}

bool Walk::next() {
  const u64 left = file_.size() - offset_;
  if (left < sizeof(Head)) return false;
  file_.read(offset_, sizeof(Head), &head_);
  if (head_.bytes > left - sizeof(Head) || padded(head_.bytes) > left - sizeof(Head)) return false;
  payload_.resize(padded(head_.bytes));
  file_.read(offset_ + sizeof(Head), payload_.size(), payload_.data());
  const u64 sum = checksum_of(head_, payload_.data());
  if (sum != head_.checksum)
    fail<InputError>(place(file_, offset_), "the frame is damaged: got checksum {:016x}, expected {:016x}",
                     sum, head_.checksum);
  if (head_.zero != 0) fail<InputError>(place(file_, offset_ + 28), "got {}, expected 0", head_.zero);
  for (u64 i = head_.bytes; i < payload_.size(); ++i) {
    if (payload_[i] != 0)
      fail<InputError>(place(file_, offset_ + sizeof(Head) + i), "padding: got {}, expected 0",
                       static_cast<int>(static_cast<unsigned char>(payload_[i])));
  }
  frame_ = offset_;
  offset_ += sizeof(Head) + payload_.size();
  return true;
}

}  // namespace hetermoe::frames
