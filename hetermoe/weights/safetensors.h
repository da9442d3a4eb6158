#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/base/sorted_json.h"
#include "hetermoe/nn/params.h"

// The safetensors format of Hugging Face: 8 bytes header length, a JSON header, raw tensors.
namespace hetermoe {

/// The entry of a tensor in a file's header.
struct TensorHead {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<i64> shape;
  i64 bytes() const;
  bool operator==(const TensorHead&) const = default;
};

/// A tensor that is made when its turn comes, so that no more than one is in memory.
struct OutTensor {
  TensorHead head;
  std::function<at::Tensor()> make;  ///< on the CPU, with dtype and shape of the head
};
/// One that is there already.
OutTensor kept_tensor(const std::string& name, const at::Tensor& tensor);

/// "F32", "BF16", ... as the format calls it.
const char* dtype_text(at::ScalarType dtype);

/// Writes a file tensor by tensor, so that no more than one of them need be in memory. An unfinished file is
/// removed again; a device, a pipe or a link to one stays.
class SafetensorsWriter {
 public:
  /// metadata: texts by name, which other readers ignore. Throws IoError.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorHead> heads,
                    const SortedJson& metadata = SortedJson::object());
  ~SafetensorsWriter();
  /// The next of the tensors, on the CPU, with the dtype and shape of its head.
  void add(const at::Tensor& tensor);
  /// Syncs the file to the disk. All tensors must have been added.
  void finish();
  /// Before, writes other metadata in the place of the first: of the same length as text, and into a file
  /// alone.
  void finish(const SortedJson& metadata);

 private:
  class File;
  std::string header_of(const SortedJson& metadata) const;
  std::vector<TensorHead> heads_;
  std::size_t next_ = 0;
  u64 header_bytes_ = 0;
  std::unique_ptr<File> file_;
};

/// Writes a new file and syncs it to the disk. Checksums of the tensors go into the header's metadata, which
/// other readers ignore. Throws IoError; what was written of the file is then removed.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors);
/// The same of tensors that are made in their turn, into a file and no pipe: checksums are known at the end.
void write_in_turn(const std::filesystem::path& path, const std::vector<OutTensor>& tensors);

/// Makes what was written of a file, or the names in a folder, survive a power cut. Throws IoError.
void sync_to_disk(const std::filesystem::path& path);

/// The checksums that a reader requires of a file. A file in which some tensors have one and some do not was
/// changed, and is refused in either case.
enum class Checksums { kWhereThere, kOfAll };

class SafetensorsReader {
 public:
  /// Reads and checks the header: every byte after it must belong to exactly one tensor. Throws IoError that
  /// says what is wrong with the file.
  explicit SafetensorsReader(const std::filesystem::path& path, Checksums checksums = Checksums::kWhereThere);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  i64 size() const { return size_; }
  std::vector<std::string> names() const;
  std::vector<TensorHead> heads() const;
  bool has(const std::string& name) const { return entries_.count(name) > 0; }
  /// Throws IoError when the name is not there.
  at::ScalarType dtype(const std::string& name) const { return entry(name).head.dtype; }
  /// A copy. Throws IoError when the name is not there or the bytes are not those that were written.
  at::Tensor read(const std::string& name) const;
  /// The tensor as it lies in the file, mapped into memory: only what is looked at is read, all of it once
  /// where it has a checksum. Writing to it changes no file. It may outlive the reader. Throws IoError.
  at::Tensor map(const std::string& name) const;

 private:
  struct Entry {
    TensorHead head;
    i64 begin, end;
    std::string checksum;           // empty: a file by another writer
    mutable char compared = false;  // with the checksum, by map()
  };
  const Entry& entry(const std::string& name) const;
  void read_header(Checksums checksums);
  void add_entry(const std::string& name, const SortedJson& json, const SortedJson& metadata);
  void check_places() const;
  void check_checksums(const SortedJson& metadata, Checksums checksums) const;
  void check_bytes(const Entry& entry, const void* data) const;
  void read_bytes(void* out, i64 begin, i64 size) const;

  std::filesystem::path path_;
  int file_ = -1;
  i64 data_begin_ = 0, size_ = 0;
  std::map<std::string, Entry> entries_;
};

}  // namespace hetermoe
