#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/nn/params.h"

// The safetensors format of Hugging Face: 8 bytes header length, a JSON header, raw tensors.
namespace hetermoe {

/// Writes a new file and syncs it to the disk. Checksums of the tensors go into the header's metadata, which
/// other readers ignore. Throws IoError; what was written of the file is then removed.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors);

/// Makes what was written of a file, or the names in a folder, survive a power cut. Throws IoError.
void sync_to_disk(const std::filesystem::path& path);

/// What a reader asks of the checksums in a file. A file in which some tensors have one and some do not was
/// changed, and is refused in either case.
enum class Checksums { kWhereThere, kOfAll };

class SafetensorsReader {
 public:
  /// Reads and checks the header. Throws IoError that says what is wrong with the file.
  explicit SafetensorsReader(const std::filesystem::path& path, Checksums checksums = Checksums::kWhereThere);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return entries_.count(name) > 0; }
  /// A copy. Throws IoError when the name is not there or the bytes are not those that were written.
  at::Tensor read(const std::string& name) const;

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<i64> shape;
    i64 begin, end;
    std::string checksum;  // empty: a file by another writer
  };
  void read_header(Checksums checksums);
  void add_entry(const std::string& name, const Json& json, const Json& metadata);
  void check_checksums(const Json& metadata, Checksums checksums) const;
  void read_bytes(void* out, i64 begin, i64 size) const;

  std::filesystem::path path_;
  int file_ = -1;
  i64 data_begin_ = 0, size_ = 0;
  std::map<std::string, Entry> entries_;
};

}  // namespace hetermoe
