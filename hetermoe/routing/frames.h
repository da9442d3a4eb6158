#pragma once
#include <cstring>
#include <string>

#include "hetermoe/routing/trace.h"

// How a routing trace lies in its file, for its reader and its writer. All little endian, as the machines are
// that this runs on.
namespace hetermoe::frames {

inline constexpr char kMagic[9] = "HMROUTES";
inline constexpr std::uint32_t kVersion = 1;

enum Kind : std::uint32_t { kSequences = 1, kChoices = 2, kCounts = 3, kEnd = 4 };

/// Before the JSON of the header.
struct FileHead {
  char magic[8];
  std::uint32_t version, header_bytes;
  u64 checksum;  ///< of the header's bytes
};
static_assert(sizeof(FileHead) == 24);

/// Before the payload of a frame.
struct Head {
  std::uint32_t kind = 0, layer = 0;
  i64 step = 0, first = 0;
  std::uint32_t count = 0, zero = 0;
  u64 bytes = 0;     ///< of the payload, without padding
  u64 checksum = 0;  ///< of the 40 bytes before and the payload
};
static_assert(sizeof(Head) == 48);
static_assert(sizeof(TraceSequence) == 24);

constexpr u64 padded(u64 bytes) { return (bytes + 7) / 8 * 8; }
u64 checksum_of(const Head& head, const void* payload);

/// Bytes of one expert id.
inline u64 id_bytes(const TraceHeader& header) { return header.num_experts <= 255 ? 1 : 2; }
/// Bytes of the payload of a CHOICES frame.
u64 choices_bytes(const TraceHeader& header, u64 tokens);
/// Where its weights begin.
u64 weights_begin(const TraceHeader& header, u64 tokens);

/// The header as it stands in the file, padded with blanks.
std::string header_text(const TraceHeader& header);
TraceHeader header_from(const std::string& text, const std::string& where);

/// A file that is read by position.
class InputFile {
 public:
  /// Throws IoError.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  const std::string& name() const { return name_; }
  u64 size() const { return size_; }
  /// Throws IoError when the bytes are not there.
  void read(u64 offset, u64 bytes, void* out) const;

 private:
  std::string name_;
  int file_ = -1;
  u64 size_ = 0;
};

struct FileStart {
  TraceHeader header;
  u64 end = 0;  ///< first byte after it
};
/// Throws InputError for another magic, version or header.
FileStart read_start(const InputFile& file);

/// Goes through the frames of a file from `offset` on.
class Walk {
 public:
  Walk(const InputFile& file, u64 offset) : file_(file), offset_(offset) {}
  /// The next whole frame; false where no more is whole. Throws InputError for a frame that is damaged.
  bool next();
  const Head& head() const { return head_; }
  const std::string& payload() const { return payload_; }
  u64 payload_offset() const { return frame_ + sizeof(Head); }
  u64 frame() const { return frame_; }    ///< where the frame begins
  u64 offset() const { return offset_; }  ///< where the next one would

 private:
  const InputFile& file_;
  u64 offset_, frame_ = 0;
  Head head_;
  std::string payload_;
};

/// "FILE at byte N", for errors.
std::string place(const InputFile& file, u64 offset);

}  // namespace hetermoe::frames
